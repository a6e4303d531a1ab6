"""Where the pages are of what is planned over documents: summaries, and answers."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from api.http.scopes import CONSOLE
from jobs import ids
from jobs.ids import IdKind
from jobs.states.summary import Purpose


@dataclass(frozen=True, slots=True)
class SubjectPages:
    """The pages of one kind.

    Attributes:
        path: of their list, below the console's.
        kind: of their ids.
        words: what the page of one of its jobs calls it.
        title: what the overview calls those that have not ended.
    """

    purpose: Purpose
    path: str
    kind: IdKind
    words: str
    title: str

    @property
    def address(self) -> str:
        """The address of their list."""
        return f"{CONSOLE}{self.path}"

    def address_of(self, row_id: UUID) -> str:
        """Return the address of the page of this one."""
        return f"{self.address}/{self.kind.format(row_id)}"


SUBJECTS: Final[dict[str, SubjectPages]] = {
    each.purpose: each
    for each in (
        SubjectPages(Purpose.SUMMARY, "/summaries", ids.SUMMARY, "this summary", "open summaries"),
        SubjectPages(Purpose.ANSWERS, "/answers", ids.ANSWERS, "these answers", "open answers"),
    )
}


def of_event(event_type: str) -> SubjectPages | None:
    """Return the pages of what an event such as `answers.completed` is about; None: it has none."""
    return SUBJECTS.get(event_type.partition(".")[0])
