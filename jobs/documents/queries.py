"""Queries on documents: searched by their names, and followed while their texts are extracted."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from sqlalchemy import ColumnElement, Text, any_, cast, or_, select, type_coerce
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session, defer
from sqlalchemy.types import Uuid

from jobs.database import paging
from jobs.database.paging import FoundRows, SearchRange
from jobs.database.rows import matches
from jobs.database.sealed_columns import is_sealed
from jobs.documents.lifecycle import visible
from jobs.models.document import Document


@dataclass(frozen=True, slots=True)
class DocumentFilter:
    """A filter of documents; fields that are None match everything.

    Attributes:
        name: a part of the filename or the title, in any case of letters.
    """

    state: str | None = None
    name: str | None = None


def search_documents(session: Session, which: DocumentFilter, wanted: SearchRange) -> FoundRows[Document]:
    """Search documents without page maps; an index finds a tenant's documents in one state."""
    tenant_id = wanted.tenant_id
    of_tenant = matches((Document.tenant_id, tenant_id), (Document.state, which.state))
    among = of_tenant if tenant_id is not None else []
    found = [*_of(which, wanted)]
    if which.name is not None:
        found.append(_is_named(session, which, wanted, among))
    return paging.search(
        session,
        select(Document).where(*found).options(defer(Document.pages)),
        Document.id,
        wanted,
        among=among,
        has_index=which.name is None and (tenant_id is not None or which.state is None),
    )


def _is_named(
    session: Session, which: DocumentFilter, wanted: SearchRange, among: Sequence[ColumnElement[bool]]
) -> ColumnElement[bool]:
    """Build the condition on filename and title. Titles that are sealed are read here: SQL cannot."""
    name = which.name or ""
    start = [] if wanted.after is None else [Document.id < wanted.after]
    window = select(Document.id).where(*among, *start).order_by(Document.id.desc()).limit(wanted.window)
    titles = select(Document.id, Document.title).where(
        Document.id.in_(window), is_sealed(Document.title), *_of(which, wanted)
    )
    rows = session.execute(titles.order_by(Document.id.desc()))
    fit = (row.id for row in rows if name.lower() in (row.title or "").lower())
    # As it is stored: the column's own type would seal what is searched for.
    title = type_coerce(Document.title, Text)
    return or_(
        Document.filename.icontains(name, autoescape=True),
        title.icontains(name, autoescape=True) & ~is_sealed(Document.title),
        Document.id.in_(list(islice(fit, wanted.limit + 1))),
    )


def _of(which: DocumentFilter, wanted: SearchRange) -> Sequence[ColumnElement[bool]]:
    return *visible(wanted.tenant_id), *matches((Document.state, which.state))


@dataclass(frozen=True, slots=True)
class DocumentStatus:
    """The parts of a document that change while its text is extracted."""

    state: str
    num_pages: int | None
    num_tokens: int | None
    error_code: str | None


def read_status(session: Session, document_ids: Sequence[UUID]) -> dict[UUID, DocumentStatus]:
    """Read the changing parts of these documents, of any tenant; skip ids that are none."""
    columns = (Document.id, Document.state, Document.num_pages, Document.num_tokens)
    code = Document.error["code"].astext.label("code")
    query = select(*columns, code).where(Document.id == any_(cast(document_ids, ARRAY(Uuid))))
    return {
        row.id: DocumentStatus(row.state, row.num_pages, row.num_tokens, row.code)
        for row in session.execute(query)
    }
