"""The list of answers, with filters in its address; its rows grow while the page is open."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import live
from api.console.error_pages import page_router
from api.console.lists import ListPage, ListQuery, RowList
from api.console.live import LiveDep
from api.console.page import render, render_part
from api.console.reading import read_for, tenant_names
from api.console.session import Viewer, ViewerDep
from api.console.subjects import SUBJECTS
from api.http.dependencies import ServicesDep
from jobs import ids, summaries
from jobs.models import Summary
from jobs.queries import JobStatus
from jobs.questions import queries
from jobs.questions.queries import QuestionOutcomes
from jobs.states.summary import TERMINAL, Purpose, SummaryState
from jobs.summaries import SummaryFilter, SummaryStatus, parts

router = page_router()

LIST: Final = SUBJECTS[Purpose.ANSWERS].address
STATES: Final = tuple(SummaryState)
_ANSWERS: Final = RowList(
    LIST,
    ids.ANSWERS,
    filters=("state", "document", "custom_id", "tenant"),
    values={"state": STATES},
    ids={"document": ids.DOCUMENT},
)


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


@router.get("/answers")
async def show_answers_list(request: Request, services: ServicesDep, viewer: ViewerDep) -> Response:
    """Show a page of answers, newest first."""
    query = _ANSWERS.parse(request.query_params)
    page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
    return render(
        request,
        "answers/list.html",
        title="Answers",
        page=page,
        rows=[(ids.answers_id(each), row) for each, row in page.rows.items()],
        fields=query.fields,
        states=STATES,
        links=query.links(next_after=page.next, is_live=bool(open_rows(page.rows.values()))),
    )


@router.get("/answers/live")
async def follow_answers_list(
    request: Request, services: ServicesDep, viewer: ViewerDep, watched: LiveDep
) -> Response:
    """Stream the changes of the page's answers that have not ended."""
    query = _ANSWERS.parse(request.query_params)
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        page = await read_for(viewer, services, partial(read_page, query=query, viewer=viewer))
        shown = open_rows(page.rows.values())
        return live.respond(stream, watched.summaries, list(shown), row_renderer(request, shown))


def row_renderer(
    request: Request, shown: dict[UUID, SummaryStatus]
) -> Callable[[UUID, SummaryStatus | JobStatus], str | None]:
    """Return what renders the change of a row that shows something else."""

    def render_row(answers_id: UUID, status: SummaryStatus | JobStatus) -> str | None:
        if not isinstance(status, SummaryStatus) or shown.get(answers_id) == status:
            return None
        shown[answers_id] = status
        name = ids.answers_id(answers_id)
        return render_part(request, "summaries/row_live.html", id=name, status=status)

    return render_row


def read_page(session: Session, *, query: ListQuery, viewer: Viewer) -> ListPage[AnswersRow]:
    """Read a page of the list, in a bounded number of rows; raise as `ListQuery.range_for` does."""
    which = SummaryFilter(
        state=query.chosen.get("state"),
        custom_id=query.chosen.get("custom_id"),
        document_id=query.ids["document"],
    )
    wanted = query.range_for(session, viewer)
    found = parts.search_summaries(session, which, wanted, purpose=Purpose.ANSWERS)
    names = tenant_names(session, viewer, [each.tenant_id for each in found.items])
    rows = {each.asked.id: each for each in read_rows(session, found.items)}
    return ListPage(rows, names, found.next, found.is_cut)


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


def open_rows(rows: Iterable[AnswersRow]) -> dict[UUID, SummaryStatus]:
    """Return what a page shows of answers that have not ended."""
    return {row.asked.id: row.status for row in rows if row.status is not None}
