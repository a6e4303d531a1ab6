"""The list of summaries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.orm import Session

from api.console.subjects.kinds import SUBJECTS
from api.console.subjects.listing import SubjectList, list_routes
from jobs import summaries
from jobs.models import Summary
from jobs.states.summary import TERMINAL, Purpose
from jobs.summaries import SummaryStatus, parts
from jobs.summaries.parts import SummarySources

PAGES: Final = SUBJECTS[Purpose.SUMMARY]


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A summary in the list.

    Attributes:
        sources: None: it has no documents any more.
        status: None: it has ended.
    """

    asked: Summary
    sources: SummarySources | None
    status: SummaryStatus | None


def read_rows(session: Session, found: Sequence[Summary]) -> list[SummaryRow]:
    """Read what rows show of these summaries, with few queries in all."""
    sources = parts.read_sources(session, [each.id for each in found])
    status = summaries.read_status(session, [each.id for each in found if each.state not in TERMINAL])
    return [SummaryRow(each, sources.get(each.id), status.get(each.id)) for each in found]


router = list_routes(SubjectList(PAGES, "Summaries", "summaries/list.html", read_rows))
