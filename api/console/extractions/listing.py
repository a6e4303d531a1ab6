"""The list of extractions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.orm import Session

from api.console.subjects.kinds import SUBJECTS
from api.console.subjects.listing import SubjectList, list_routes
from jobs import summaries
from jobs.models import Summary
from jobs.questions import queries
from jobs.states.summary import TERMINAL, Purpose
from jobs.summaries import SummaryStatus, parts

PAGES: Final = SUBJECTS[Purpose.EXTRACTION]


@dataclass(frozen=True, slots=True)
class ExtractionRow:
    """An extraction in the list.

    Attributes:
        document: title or filename; None: it is deleted, or has none.
        status: None: it has ended.
        num_found: fields that have a value; None: nothing is settled.
    """

    asked: Summary
    document: str | None
    status: SummaryStatus | None
    num_found: int | None


def read_rows(session: Session, found: Sequence[Summary]) -> list[ExtractionRow]:
    """Read what rows show of these extractions, with few queries in all."""
    listed = [each.id for each in found]
    sources = parts.read_sources(session, listed)
    status = summaries.read_status(session, [each.id for each in found if each.state not in TERMINAL])
    outcomes = queries.count_outcomes(session, listed)
    return [
        ExtractionRow(
            each,
            sources[each.id].name if each.id in sources else None,
            status.get(each.id),
            outcomes[each.id].num_found if each.id in outcomes else None,
        )
        for each in found
    ]


router = list_routes(SubjectList(PAGES, "Extractions", "extractions/list.html", read_rows))
