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
        address: of their list.
        kind: of their ids.
        words: what the page of one of its jobs calls it.
        title: what the overview calls those that have not ended.
    """

    address: str
    kind: IdKind
    words: str
    title: str

    def address_of(self, row_id: UUID) -> str:
        """Return the address of the page of this one."""
        return f"{self.address}/{self.kind.format(row_id)}"


SUBJECTS: Final[dict[str, SubjectPages]] = {
    Purpose.SUMMARY.value: SubjectPages(
        f"{CONSOLE}/summaries", ids.SUMMARY, "this summary", "open summaries"
    ),
    Purpose.ANSWERS.value: SubjectPages(f"{CONSOLE}/answers", ids.ANSWERS, "these answers", "open answers"),
}


def of_event(event_type: str) -> SubjectPages | None:
    """Return the pages of what an event such as `answers.completed` is about; None: it has none."""
    return SUBJECTS.get(event_type.partition(".")[0])
