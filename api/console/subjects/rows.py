"""The rows of lists and tables of what was asked of one document: its answers, an extraction from it."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from jobs import summaries
from jobs.models import Summary
from jobs.questions import queries
from jobs.questions.queries import QuestionOutcomes
from jobs.states.summary import TERMINAL
from jobs.summaries import SummaryStatus, parts


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """What was asked of a document, as a row.

    Attributes:
        document: title or filename; None: it is deleted, or has none.
        status: None: it has ended.
        outcomes: None: nothing is settled.
    """

    asked: Summary
    document: str | None
    status: SummaryStatus | None
    outcomes: QuestionOutcomes | None


def read_rows(session: Session, found: Sequence[Summary]) -> list[DocumentRow]:
    """Read what rows show of these, in order, with few queries in all."""
    listed = [each.id for each in found]
    sources = parts.read_sources(session, listed)
    status = summaries.read_status(session, [each.id for each in found if each.state not in TERMINAL])
    outcomes = queries.count_outcomes(session, listed)
    return [
        DocumentRow(
            each,
            sources[each.id].name if each.id in sources else None,
            status.get(each.id),
            outcomes.get(each.id),
        )
        for each in found
    ]
