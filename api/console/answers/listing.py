"""The list of answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.orm import Session

from api.console.subjects.kinds import SUBJECTS
from api.console.subjects.listing import SubjectList, list_routes
from jobs import summaries
from jobs.models import Summary
from jobs.questions import queries
from jobs.questions.queries import QuestionOutcomes
from jobs.states.summary import TERMINAL, Purpose
from jobs.summaries import SummaryStatus, parts

PAGES: Final = SUBJECTS[Purpose.ANSWERS]


@dataclass(frozen=True, slots=True)
class AnswersRow:
    """The answers of a document in the list.

    Attributes:
        document: title or filename; None: it is deleted, or has none.
        status: None: they have ended.
        outcomes: None: nothing is settled.
    """

    asked: Summary
    document: str | None
    status: SummaryStatus | None
    outcomes: QuestionOutcomes | None


def read_rows(session: Session, answers: Sequence[Summary]) -> list[AnswersRow]:
    """Read what rows show of these answers, with few queries in all."""
    listed = [each.id for each in answers]
    sources = parts.read_sources(session, listed)
    status = summaries.read_status(session, [each.id for each in answers if each.state not in TERMINAL])
    outcomes = queries.count_outcomes(session, listed)
    return [
        AnswersRow(
            each,
            sources[each.id].name if each.id in sources else None,
            status.get(each.id),
            outcomes.get(each.id),
        )
        for each in answers
    ]


router = list_routes(SubjectList(PAGES, "Answers", "answers/list.html", read_rows))
