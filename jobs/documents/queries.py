"""Queries on documents: searched by their names, and followed while their texts are extracted."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement, any_, cast, or_, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session, defer
from sqlalchemy.types import Uuid

from jobs.database import paging
from jobs.database.paging import FoundRows, SearchRange
from jobs.database.rows import matches
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

    def conditions(self) -> list[ColumnElement[bool]]:
        """Build the SQL conditions."""
        found = matches((Document.state, self.state))
        if self.name is not None:
            columns = (Document.filename, Document.title)
            found.append(or_(*(each.icontains(self.name, autoescape=True) for each in columns)))
        return found


def search_documents(session: Session, which: DocumentFilter, wanted: SearchRange) -> FoundRows[Document]:
    """Search documents without page maps; an index finds a tenant's documents in one state."""
    tenant_id = wanted.tenant_id
    of_tenant = matches((Document.tenant_id, tenant_id), (Document.state, which.state))
    return paging.search(
        session,
        select(Document).where(*visible(tenant_id), *which.conditions()).options(defer(Document.pages)),
        Document.id,
        wanted,
        among=of_tenant if tenant_id is not None else (),
        has_index=which.name is None and (tenant_id is not None or which.state is None),
    )


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
