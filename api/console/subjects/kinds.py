"""Where the pages are of what is planned over documents: summaries, answers, extractions."""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from api.http.scopes import CONSOLE
from jobs import ids
from jobs.ids import IdKind
from jobs.models import SummaryNode
from jobs.states.summary import Purpose


@dataclass(frozen=True, slots=True)
class SubjectPages:
    """The pages of one kind.

    Attributes:
        path: of their list, below the console's.
        kind: of their ids.
        events: how the types of their events begin.
        part: where, after the address of one, a node of its tree is: by `{number}` or `{question}`.
        words: what the page of one of its jobs calls it.
        title: what the overview calls those that have not ended.
    """

    purpose: Purpose
    path: str
    kind: IdKind
    events: str
    part: str
    words: str
    title: str

    @property
    def address(self) -> str:
        """The address of their list."""
        return f"{CONSOLE}{self.path}"

    def address_of(self, row_id: UUID) -> str:
        """Return the address of the page of this one."""
        return f"{self.address}/{self.kind.format(row_id)}"

    def part_of(self, node: SummaryNode) -> str:
        """Return the address of what tells of a node of its tree."""
        question = 1 + (node.question or 0)
        return self.address_of(node.summary_id) + self.part.format(number=node.number, question=question)


SUBJECTS: Final[dict[str, SubjectPages]] = {
    each.purpose: each
    for each in (
        SubjectPages(
            Purpose.SUMMARY,
            "/summaries",
            ids.SUMMARY,
            events="summary",
            part="/parts/{number}",
            words="this summary",
            title="open summaries",
        ),
        SubjectPages(
            Purpose.ANSWERS,
            "/answers",
            ids.ANSWERS,
            events="answers",
            part="/questions/{question}",
            words="these answers",
            title="open answers",
        ),
        SubjectPages(
            Purpose.EXTRACTION,
            "/extractions",
            ids.EXTRACTION,
            events="extractions",
            part="#part-{number}",
            words="this extraction",
            title="open extractions",
        ),
    )
}
_BY_EVENTS: Final = {each.events: each for each in SUBJECTS.values()}


def of_event(event_type: str) -> SubjectPages:
    """Return the pages of what an event such as `answers.completed` is about."""
    return _BY_EVENTS[event_type.partition(".")[0]]
