"""The answers that one request made, as a table of documents and questions, page by page and as a file."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, Literal
from uuid import UUID

from fastapi import Query, Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.responses import Response, StreamingResponse

from api.console import formats, live
from api.console.answers.answers import SHOW_ANSWERS
from api.console.answers.listing import PAGES, AnswersRow, read_rows
from api.console.error_pages import page_router
from api.console.live import LiveDep
from api.console.page import render, render_part
from api.console.reading import owner_of, read_for
from api.console.session import Viewer, ViewerDep
from api.console.subjects.live import open_rows, row_renderer
from api.http.dependencies import ServicesDep
from api.http.identifiers import AnswersIdDep, parse_optional
from api.runtime.services import Services
from jobs import ids, questions
from jobs.models import Summary, SummaryDocument
from jobs.models.document import Document
from jobs.queries import JobStatus
from jobs.questions import queries, trees
from jobs.questions.views import AnswerReply
from jobs.states.summary import TERMINAL
from jobs.summaries import SummaryStatus
from jobs.tables import answers as tables
from jobs.tables.findings import shown_failure

router = page_router()

FileForm = Literal["csv", "json"]
_MEDIA_TYPES: Final = {"csv": "text/csv; charset=utf-8", "json": "application/json"}
_MAX_ROWS: Final = 25
# A browser lays these out in a moment, and their texts fit in memory however long they are.
_MAX_CELLS: Final = 500
_READ_AT_ONCE: Final = 20


@dataclass(frozen=True, slots=True)
class AnswersTable:
    """A page of a table.

    Attributes:
        questions: that all of its documents were asked.
        num_documents: of the whole table.
        first: the place of the page's first row, from 1.
        answers: by the id of the row; none before it is settled.
        next: the id of the row after which the next page begins; None: this is the last.
    """

    questions: Sequence[str]
    num_documents: int
    first: int
    rows: Sequence[AnswersRow]
    answers: Mapping[UUID, Sequence[AnswerReply]]
    next: UUID | None


@router.get("/answers/{answers_id}/table")
async def show_table(
    request: Request,
    answers_id: AnswersIdDep,
    services: ServicesDep,
    viewer: ViewerDep,
    show: str = "",
    after: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Show what each document says to each question; with `show=answers` in its words."""
    start = _parse_after(after)
    read = partial(read_table, answers_id=answers_id, viewer=viewer, after=start)
    found = await read_for(viewer, services, read)
    address = PAGES.address_of(answers_id)
    with_texts = show == SHOW_ANSWERS
    fields = {"show": show if with_texts else None}
    here = formats.query({**fields, "after": after or None})
    following = None if found.next is None else formats.query({**fields, "after": ids.answers_id(found.next)})
    return render(
        request,
        "answers/table.html",
        title="Answers asked together",
        found=found,
        rows=[(ids.answers_id(each.asked.id), each) for each in found.rows],
        with_texts=with_texts,
        answers_address=address,
        address=f"{address}/table",
        after=after,
        next_address=f"{address}/table{following}" if following else None,
        live_address=f"{address}/table/live{here}" if open_rows(found.rows) else None,
    )


@router.get("/answers/{answers_id}/table/live")
async def follow_table(
    request: Request,
    answers_id: AnswersIdDep,
    services: ServicesDep,
    viewer: ViewerDep,
    watched: LiveDep,
    show: str = "",
    after: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Stream the counts of the page's rows; reload the page when one of them ends."""
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        start = _parse_after(after)
        read = partial(read_table, answers_id=answers_id, viewer=viewer, after=start)
        shown = open_rows((await read_for(viewer, services, read)).rows)
        with_texts = show if show == SHOW_ANSWERS else None
        here = formats.query({"show": with_texts, "after": after or None})
        address = f"{PAGES.address_of(answers_id)}/table{here}"
        reload = render_part(request, "reload_live.html", address=address, part="#table")
        render_row = row_renderer(request, PAGES, shown)

        def render_change(row_id: UUID, status: SummaryStatus | JobStatus) -> str | None:
            is_over = isinstance(status, SummaryStatus) and status.state in TERMINAL
            return reload if is_over else render_row(row_id, status)

        return live.respond(stream, watched.summaries, list(shown), render_change, ended=reload)


@router.get("/answers/{answers_id}/table/result")
async def download_table(
    answers_id: AnswersIdDep,
    services: ServicesDep,
    viewer: ViewerDep,
    form: Annotated[FileForm, Query(alias="format")] = "csv",
) -> Response:
    """Send the whole table as a file; of documents that have not ended it says so."""

    def find(session: Session) -> FileRows:
        asked = _get(session, answers_id, viewer)
        return FileRows(trees.asked_together(session, asked), asked.tenant_id)

    rows = await read_for(viewer, services, find)
    return file_response(services, viewer, rows, form, name=f"{ids.answers_id(answers_id)}-table")


@dataclass(frozen=True, slots=True)
class FileRows:
    """The answers of a file: their ids, and whose they are."""

    ids: Sequence[UUID]
    owner: UUID


def file_response(
    services: Services, viewer: Viewer, rows: FileRows, form: FileForm, *, name: str
) -> Response:
    """Send these answers as a file called `name`, read some at a time, without those deleted meanwhile."""
    headers = {"Content-Disposition": f'attachment; filename="{name}.{form}"'}
    written = _written(services, viewer, rows, form)
    return StreamingResponse(written, media_type=_MEDIA_TYPES[form], headers=headers)


def read_table(session: Session, *, answers_id: UUID, viewer: Viewer, after: UUID | None) -> AnswersTable:
    """Read a page of the table.

    Raises:
        NotFoundError: the viewer sees no such answers.
    """
    asked = _get(session, answers_id, viewer)
    listed = trees.asked_together(session, asked)
    start = 0 if after is None else sum(each <= after for each in listed)
    num_rows = max(1, min(_MAX_ROWS, _MAX_CELLS // max(1, len(asked.questions or ()))))
    shown = listed[start : start + num_rows]
    answers = _read(session, shown, owner=asked.tenant_id)
    return AnswersTable(
        questions=asked.questions or [],
        num_documents=len(listed),
        first=start + 1,
        rows=read_rows(session, answers),
        answers=queries.list_findings_of(session, answers),
        next=shown[-1] if shown and start + num_rows < len(listed) else None,
    )


def _get(session: Session, answers_id: UUID, viewer: Viewer) -> Summary:
    owner = owner_of(session, viewer, answers_id, of=(Summary.id, Summary.tenant_id))
    return questions.get(session, answers_id, tenant_id=owner)


def _parse_after(text: str) -> UUID | None:
    return parse_optional(text or None, ids.parse_answers_id, param="after", message="There is no such page.")


def _read(session: Session, listed: Sequence[UUID], *, owner: UUID) -> Sequence[Summary]:
    query = select(Summary).where(
        Summary.id.in_(listed), Summary.tenant_id == owner, Summary.deleted_at.is_(None)
    )
    return session.scalars(query.order_by(Summary.id)).all()


async def _written(services: Services, viewer: Viewer, rows: FileRows, form: FileForm) -> AsyncIterator[str]:
    is_csv = form == "csv"
    yield tables.header() if is_csv else "["
    num_written = 0
    for place in range(0, len(rows.ids), _READ_AT_ONCE):
        read = partial(_read_file_rows, listed=rows.ids[place : place + _READ_AT_ONCE], owner=rows.owner)
        for each in await read_for(viewer, services, read):
            if is_csv:
                yield each.as_csv()
            else:
                yield f"{',' if num_written else ''}\n{each.as_json()}"
            num_written += 1
    if not is_csv:
        yield "\n]\n"


@dataclass(frozen=True, slots=True)
class _FileRow:
    """The answers of one document in a file; `name` is the document's filename, or its id."""

    name: str
    asked: Summary
    document: str
    answers: Sequence[AnswerReply]

    def as_csv(self) -> str:
        if self.answers:
            return tables.answer_lines(self.name, self.answers)
        why = shown_failure(self.asked.error) if self.asked.error else f"[{self.asked.state}]"
        return tables.unanswered_lines(self.name, self.asked.questions or [], why)

    def as_json(self) -> str:
        row = {
            "id": ids.answers_id(self.asked.id),
            "state": self.asked.state,
            "document": self.document,
            "filename": None if self.name == self.document else self.name,
            "answers": self.answers,
            "error": self.asked.error,
        }
        return json.dumps(row, ensure_ascii=False)


def _read_file_rows(session: Session, *, listed: Sequence[UUID], owner: UUID) -> list[_FileRow]:
    """Read what a file has of these answers of the owner."""
    answers = _read(session, listed, owner=owner)
    settled = queries.list_findings_of(session, answers)
    query = (
        select(SummaryDocument.summary_id, SummaryDocument.document_id, Document.filename)
        .outerjoin(Document, Document.id == SummaryDocument.document_id)
        .where(SummaryDocument.summary_id.in_(listed))
    )
    of = {each.summary_id: each for each in session.execute(query)}
    found = []
    for each in answers:
        document = ids.document_id(of[each.id].document_id)
        found.append(_FileRow(of[each.id].filename or document, each, document, settled[each.id]))
    return found
