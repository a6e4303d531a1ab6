"""The list of summaries, with filters in its address; its rows grow while the page is open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import formats, live
from api.console.error_pages import page_router
from api.console.live import LiveDep
from api.console.page import render, render_part
from api.console.reading import PAGE, WINDOW, read_for, tenant_names, tenant_of
from api.console.session import Viewer, ViewerDep
from api.http.dependencies import ServicesDep
from api.http.event_responses import EventResponse
from api.http.identifiers import parse_optional
from jobs import ids, summaries, tenants
from jobs.errors import InvalidRequestError
from jobs.models import Summary
from jobs.queries import JobStatus
from jobs.states.summary import TERMINAL, SummaryState
from jobs.summaries import SummaryFilter, SummaryStatus, parts
from jobs.summaries.parts import SummarySources

router = page_router()

LIST: Final = "/console/summaries"
STATES: Final = tuple(SummaryState)
_NAMES: Final = ("state", "document", "custom_id", "tenant")
# Jobs whose states one list counts, each second while it is open: some 20 ms of the database's time.
_COUNTED_JOBS: Final = 20_000


@dataclass(frozen=True, slots=True)
class SummariesQuery:
    """What the address of the list asks for.

    Attributes:
        document: the id of one of its documents.
        tenant: its name; only operators may choose. None: all that the viewer sees.
        after: the page goes on after this summary.
    """

    state: str | None = None
    document: str | None = None
    custom_id: str | None = None
    tenant: str | None = None
    after: UUID | None = None

    @property
    def fields(self) -> dict[str, str | None]:
        """The filters as they are in the address, without the place."""
        return {name: getattr(self, name) for name in _NAMES}

    @property
    def filter(self) -> SummaryFilter:
        """The filters as the domain knows them."""
        document_id = ids.parse_document_id(self.document) if self.document else None
        return SummaryFilter(state=self.state, custom_id=self.custom_id, document_id=document_id)


@dataclass(frozen=True, slots=True)
class SummariesPage:
    """A page of the list.

    Attributes:
        status: of the summaries that have not ended.
        tenants: names of the owners, for operators.
        next: the id after which the search goes on; None: there are no more.
        is_cut: the search stopped before it had filled the page.
    """

    summaries: Mapping[UUID, Summary]
    sources: Mapping[UUID, SummarySources]
    status: Mapping[UUID, SummaryStatus]
    tenants: Mapping[UUID, str]
    next: UUID | None
    is_cut: bool


@router.get("/summaries")
async def show_summaries(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show a page of summaries, newest first."""
    query = parse_query(request.query_params)
    page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
    fields = query.fields
    after = None if page.next is None else ids.summary_id(page.next)
    place = None if query.after is None else ids.summary_id(query.after)
    return render(
        request,
        "summaries/list.html",
        title="Summaries",
        page=page,
        rows=[(ids.summary_id(each), row) for each, row in page.summaries.items()],
        fields=fields,
        states=STATES,
        first_address=LIST + formats.query(fields),
        next_address=after and LIST + formats.query(fields | {"after": after}),
        live_address=f"{LIST}/live" + formats.query(fields | {"after": place}) if page.status else None,
        is_first=query.after is None,
    )


@router.get("/summaries/live")
async def follow_summaries(
    request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream the changes of the page's summaries that have not ended."""
    query = parse_query(request.query_params)
    with services.event_streams.opening(viewer.caller) as stream:
        page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
        if not page.status:
            stream.release()
            return Response(status_code=204)  # ends the browser's tries
        shown = dict(page.status)

        def render_row(summary_id: UUID, status: SummaryStatus | JobStatus) -> str | None:
            if not isinstance(status, SummaryStatus) or shown.get(summary_id) == status:
                return None
            shown[summary_id] = status
            name = ids.summary_id(summary_id)
            return render_part(request, "summaries/row_live.html", id=name, status=status)

        return EventResponse(stream, live.follow(watched.summaries, list(shown), render_row))


def parse_query(given: Mapping[str, str]) -> SummariesQuery:
    """Read the filters of an address; empty ones are not chosen.

    Raises:
        InvalidRequestError: a value is none that the form offers.
    """
    chosen = formats.chosen(given, (*_NAMES, "after"))
    if "state" in chosen and chosen["state"] not in STATES:
        raise InvalidRequestError("The filter 'state' has none of its values.", param="state")
    parse_optional(
        chosen.get("document"), ids.parse_document_id, param="document", message="There is no such document."
    )
    after = parse_optional(
        chosen.pop("after", None), ids.parse_summary_id, param="after", message="There is no such page."
    )
    return SummariesQuery(after=after, **chosen)


def read_page(session: Session, *, query: SummariesQuery, viewer: Viewer) -> SummariesPage:
    """Read a page of the list, in a bounded number of rows.

    Raises:
        NotFoundError: there is no tenant of the name in the query, or the viewer may not choose one.
    """
    owner = tenant_of(viewer)
    if query.tenant is not None:
        owner = tenants.named(session, query.tenant).id
    found, following = parts.search_summaries(
        session, query.filter, tenant_id=owner, after=query.after, limit=PAGE, window=WINDOW
    )
    rows = {each.id: each for each in found.items}
    names = tenant_names(session, [each.tenant_id for each in found.items]) if viewer.is_operator else {}
    return SummariesPage(
        summaries=rows,
        sources=parts.read_sources(session, list(rows)),
        status=summaries.read_status(session, _counted(found.items)),
        tenants=names,
        next=following,
        is_cut=following is not None and not found.has_more,
    )


def _counted(rows: Sequence[Summary]) -> list[UUID]:
    """Choose the summaries that have not ended, as long as their jobs are not too many to count."""
    num_left = _COUNTED_JOBS
    chosen = []
    for each in rows:
        if each.state not in TERMINAL:
            planned = (each.plan or {}).get("jobs")
            num_left -= planned if isinstance(planned, int) else 1
            if num_left >= 0:
                chosen.append(each.id)
    return chosen
