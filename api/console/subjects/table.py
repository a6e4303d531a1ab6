"""What one request made of several documents, as a table: page by page, followed, and as a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, Generic, TypeVar
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console import formats, live
from api.console.error_pages import page_router
from api.console.live import LiveDep
from api.console.page import render, render_part
from api.console.reading import owner_of, read_for
from api.console.session import Viewer, ViewerDep
from api.console.subjects.files import FileForm, FileRow, FileRows, file_response
from api.console.subjects.kinds import SubjectPages
from api.console.subjects.live import open_rows, row_renderer
from api.console.subjects.rows import DocumentRow, read_rows
from api.http.dependencies import ServicesDep
from api.http.identifiers import in_path, parse_optional
from api.runtime.services import Services
from jobs import ids, summaries
from jobs.errors import InvalidRequestError, JobNotFinishedError
from jobs.models import Summary, SummaryDocument
from jobs.models.document import Document
from jobs.queries import JobStatus
from jobs.questions import trees
from jobs.states.summary import TERMINAL
from jobs.summaries import SummaryStatus

Found = TypeVar("Found")
_MAX_ROWS: Final = 25
# A browser lays these out in a moment, and their texts fit in memory however long they are.
_MAX_CELLS: Final = 500


@dataclass(frozen=True, slots=True)
class SubjectTable(Generic[Found]):
    """The table of a kind: a row for each document.

    Attributes:
        title: of the page.
        template: of the page.
        show: by which its address asks for texts.
        columns_of: what was asked of all documents, in order.
        read_found: reads what was found, by the id of the row, with few queries in all.
        forms: of its files, by name, the usual one first.
        unfinished: what a download of one that has not ended says.
    """

    pages: SubjectPages
    title: str
    template: str
    show: str
    columns_of: Callable[[Summary], Sequence[str]]
    read_found: Callable[[Session, Sequence[Summary]], Mapping[UUID, Found]]
    forms: Mapping[str, FileForm[Found]]
    unfinished: str


@dataclass(frozen=True, slots=True)
class SubjectTablePage(Generic[Found]):
    """A page of a table.

    Attributes:
        columns: what was asked of all of its documents.
        num_documents: of the whole table.
        first: the place of the page's first row, from 1.
        found: by the id of the row.
        next: the id of the row after which the next page begins; None: this is the last.
    """

    columns: Sequence[str]
    num_documents: int
    first: int
    rows: Sequence[DocumentRow]
    found: Mapping[UUID, Found]
    next: UUID | None


def table_routes(of: SubjectTable[Found]) -> APIRouter:
    """Make the routes of the table of a kind, and of the files of a table and of one row."""
    router = page_router()
    _add_pages(router, of)
    _add_files(router, of)
    return router


def _add_pages(router: APIRouter, of: SubjectTable[Found]) -> None:
    place = f"{of.pages.path}/{{subject_id}}"
    find = in_path("subject_id", of.pages.kind)

    @router.get(f"{place}/table")
    async def show_table(
        request: Request,
        subject_id: Annotated[UUID, Depends(find)],
        services: ServicesDep,
        viewer: ViewerDep,
        show: str = "",
        after: Annotated[str, Query(max_length=64)] = "",
    ) -> Response:
        """Show what each document says, with `show` in its words."""
        read = partial(_read_page, of, subject_id=subject_id, viewer=viewer, after=_parse_after(of, after))
        found = await read_for(viewer, services, read)
        address = f"{of.pages.address_of(subject_id)}/table"
        shown = show if show == of.show else None
        here = formats.query({"show": shown, "after": after})
        following = None if found.next is None else of.pages.kind.format(found.next)
        return render(
            request,
            of.template,
            title=of.title,
            found=found,
            rows=[(of.pages.kind.format(each.asked.id), each) for each in found.rows],
            with_texts=shown is not None,
            show=of.show,
            forms=list(of.forms),
            list_address=of.pages.address,
            address=address,
            after=after,
            next_address=f"{address}{formats.query({'show': shown, 'after': following})}"
            if following
            else None,
            live_address=f"{address}/live{here}" if open_rows(found.rows) else None,
        )

    @router.get(f"{place}/table/live")
    async def follow_table(
        request: Request,
        subject_id: Annotated[UUID, Depends(find)],
        services: ServicesDep,
        viewer: ViewerDep,
        watched: LiveDep,
        show: str = "",
        after: Annotated[str, Query(max_length=64)] = "",
    ) -> Response:
        """Stream the counts of the page's rows; reload the page when one of them ends."""
        with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
            start = _parse_after(of, after)
            read = partial(_read_page, of, subject_id=subject_id, viewer=viewer, after=start)
            followed = open_rows((await read_for(viewer, services, read)).rows)
            here = formats.query({"show": show if show == of.show else None, "after": after})
            address = f"{of.pages.address_of(subject_id)}/table{here}"
            reload = render_part(request, "reload_live.html", address=address, part="#table")
            render_row = row_renderer(request, of.pages)

            def render_change(row_id: UUID, status: SummaryStatus | JobStatus) -> str | None:
                is_over = isinstance(status, SummaryStatus) and status.state in TERMINAL
                return reload if is_over else render_row(row_id, status)

            return live.respond(stream, watched.summaries, followed, render_change, ended=reload)


def _add_files(router: APIRouter, of: SubjectTable[Found]) -> None:
    place = f"{of.pages.path}/{{subject_id}}"
    find = in_path("subject_id", of.pages.kind)

    @router.get(f"{place}/table/result")
    async def download_table(
        subject_id: Annotated[UUID, Depends(find)],
        services: ServicesDep,
        viewer: ViewerDep,
        form: Annotated[str, Query(alias="format", max_length=16)] = "",
    ) -> Response:
        """Send the whole table as a file; of documents that have not ended it says so."""

        def find_rows(session: Session) -> FileRows:
            asked = _get(of, session, subject_id, viewer)
            return FileRows(trees.asked_together(session, asked), asked.tenant_id, of.columns_of(asked))

        rows = await read_for(viewer, services, find_rows)
        return _file(of, services, viewer, rows, form, name=f"{of.pages.kind.format(subject_id)}-table")

    @router.get(f"{place}/result")
    async def download_one(
        subject_id: Annotated[UUID, Depends(find)],
        services: ServicesDep,
        viewer: ViewerDep,
        form: Annotated[str, Query(alias="format", max_length=16)] = "",
    ) -> Response:
        """Send what was found in one document as a file, once it has ended."""

        def find_row(session: Session) -> FileRows:
            asked = _get(of, session, subject_id, viewer)
            if asked.state not in TERMINAL:
                raise JobNotFinishedError(of.unfinished)
            return FileRows([subject_id], asked.tenant_id, of.columns_of(asked))

        rows = await read_for(viewer, services, find_row)
        return _file(of, services, viewer, rows, form, name=of.pages.kind.format(subject_id))


def _read_page(
    of: SubjectTable[Found], session: Session, *, subject_id: UUID, viewer: Viewer, after: UUID | None
) -> SubjectTablePage[Found]:
    """Read a page of the table.

    Raises:
        NotFoundError: the viewer sees none of this id.
    """
    asked = _get(of, session, subject_id, viewer)
    columns = of.columns_of(asked)
    listed = trees.asked_together(session, asked)
    start = 0 if after is None else sum(each <= after for each in listed)
    num_rows = max(1, min(_MAX_ROWS, _MAX_CELLS // max(1, len(columns))))
    shown = listed[start : start + num_rows]
    rows = _read(session, shown, owner=asked.tenant_id)
    return SubjectTablePage(
        columns=columns,
        num_documents=len(listed),
        first=start + 1,
        rows=read_rows(session, rows),
        found=of.read_found(session, rows),
        next=shown[-1] if shown and start + num_rows < len(listed) else None,
    )


def _file(
    of: SubjectTable[Found], services: Services, viewer: Viewer, rows: FileRows, form: str, *, name: str
) -> Response:
    """Send a file of this form; empty: of the usual one.

    Raises:
        InvalidRequestError: there is no such form.
    """
    form = form or next(iter(of.forms))
    if form not in of.forms:
        raise InvalidRequestError(f"format: Must be one of {', '.join(of.forms)}.", param="format")
    read = partial(_read_file_rows, of)
    return file_response(services, viewer, rows, of.forms[form], filename=f"{name}.{form}", read=read)


def _read_file_rows(
    of: SubjectTable[Found], session: Session, *, listed: Sequence[UUID], owner: UUID
) -> list[FileRow[Found]]:
    """Read what a file has of these rows of the owner."""
    rows = _read(session, listed, owner=owner)
    found = of.read_found(session, rows)
    query = (
        select(SummaryDocument.summary_id, SummaryDocument.document_id, Document.filename)
        .outerjoin(Document, Document.id == SummaryDocument.document_id)
        .where(SummaryDocument.summary_id.in_(listed))
    )
    documents = {each.summary_id: each for each in session.execute(query)}
    written = []
    for each in rows:
        document = ids.document_id(documents[each.id].document_id)
        written.append(FileRow(documents[each.id].filename or document, each, document, found[each.id]))
    return written


def _get(of: SubjectTable[Found], session: Session, subject_id: UUID, viewer: Viewer) -> Summary:
    owner = owner_of(session, viewer, subject_id, of=(Summary.id, Summary.tenant_id))
    return summaries.get(session, subject_id, tenant_id=owner, purpose=of.pages.purpose)


def _parse_after(of: SubjectTable[Found], text: str) -> UUID | None:
    return parse_optional(text or None, of.pages.kind.parse, param="after", message="There is no such page.")


def _read(session: Session, listed: Sequence[UUID], *, owner: UUID) -> Sequence[Summary]:
    query = select(Summary).where(
        Summary.id.in_(listed), Summary.tenant_id == owner, Summary.deleted_at.is_(None)
    )
    return session.scalars(query.order_by(Summary.id)).all()
