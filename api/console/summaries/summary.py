"""One summary: its tree, what is missing, what it cost; its text when asked for; live until it ends."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.error_pages import page_router
from api.console.live import LiveDep
from api.console.page import render
from api.console.reading import owner_of, read_for, tenant_names
from api.console.session import Viewer, ViewerDep
from api.console.subjects.live import follow_one
from api.console.summaries.listing import PAGES
from api.http.dependencies import ServicesDep
from api.http.identifiers import SummaryIdDep
from api.summaries.quotes import find_quotes
from jobs import ids, summaries
from jobs.models import Summary
from jobs.states import TERMINAL as ENDED_JOB
from jobs.states.summary import TERMINAL
from jobs.summaries import parts, queries
from jobs.summaries.parts import SummaryPart
from jobs.summaries.views import QuoteReply, SummaryObject

router = page_router()

# Parts on one page; of larger trees each join has a page of its own.
_MAX_PARTS: Final = 150
# Gaps on the page; the downloads have all.
MAX_GAPS: Final = 100


@dataclass(frozen=True, slots=True)
class SummaryPage:
    """A summary with what the page shows of it.

    Attributes:
        tenant: its owner's name, for operators.
        shown: as callers of the API see it.
        parts: of its tree, from the root on; none until planned.
        titles: of its documents, by public id.
    """

    summary: Summary
    tenant: str | None
    shown: SummaryObject
    parts: Sequence[SummaryPart]
    titles: Mapping[str, str]

    @property
    def children(self) -> Mapping[int | None, Sequence[SummaryPart]]:
        """The parts below each part, by its number; below None: the root."""
        found = defaultdict(list)
        for each in self.parts:
            found[each.parent].append(each)
        return found


@router.get("/summaries/{summary_id}")
async def show_summary(
    request: Request, summary_id: SummaryIdDep, services: ServicesDep, viewer: ViewerDep, show: str = ""
) -> Response:
    """Show the summary; with `show=summary` or `show=instructions` its texts too."""
    read = partial(read_summary, summary_id=summary_id, viewer=viewer)
    found = await read_for(viewer, services, read)
    name, address = ids.summary_id(summary_id), PAGES.address_of(summary_id)
    is_open = found.summary.state not in TERMINAL
    quotes: Sequence[QuoteReply] = ()
    if show == "summary":
        run = partial(read_for, viewer, services)
        text = found.shown["summary"]
        quotes = await find_quotes(services, run, summary_id=summary_id, summary=text)
    return render(
        request,
        "summaries/one.html",
        title=f"Summary {name[:16]}…",
        id=name,
        found=found,
        summary=found.summary,
        shown=found.shown,
        show=show,
        quotes=quotes,
        pieces=cut_at_quotes(found.shown["summary"] or "", quotes),
        address=address,
        max_gaps=MAX_GAPS,
        is_own=found.summary.tenant_id == viewer.caller.tenant_id,
        live_address=f"{address}/live" if is_open else None,
    )


def cut_at_quotes(text: str, quotes: Sequence[QuoteReply]) -> list[tuple[str, QuoteReply | None]]:
    """Cut a summary into what it quotes from its documents and what is between, in order."""
    pieces: list[tuple[str, QuoteReply | None]] = []
    at = 0
    for each in quotes:
        end = each["at"] + len(each["quote"])
        pieces += [(text[at : each["at"]], None), (text[each["at"] : end], each)]
        at = end
    return [*pieces, (text[at:], None)]


@router.get("/summaries/{summary_id}/live")
async def follow_summary(
    request: Request, summary_id: SummaryIdDep, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream the counts of the summary and the states of its parts; reload the page at each of its states."""
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        read = partial(read_summary, summary_id=summary_id, viewer=viewer)
        found = await read_for(viewer, services, read)
        numbers = {each.job_id: each.number for each in found.parts if each.state not in ENDED_JOB}
        address = PAGES.address_of(summary_id)
        return follow_one(
            request, stream, watched, found.summary, numbers, address=address, element="#summary"
        )


def read_summary(session: Session, *, summary_id: UUID, viewer: Viewer) -> SummaryPage:
    """Read the summary, the upper parts of its tree, and its documents' titles.

    Raises:
        NotFoundError: the viewer sees no such summary.
    """
    owner = owner_of(session, viewer, summary_id, of=(Summary.id, Summary.tenant_id))
    summary = summaries.get(session, summary_id, tenant_id=owner)
    root = parts.find_root(session, summary_id)
    names = tenant_names(session, viewer, [owner])
    return SummaryPage(
        summary=summary,
        tenant=names.get(owner),
        shown=queries.describe(session, summary, max_gaps=MAX_GAPS + 1),
        parts=[] if root is None else parts.read_tree(session, summary_id, top=root, at_most=_MAX_PARTS),
        titles=queries.titles(session, summary_id),
    )
