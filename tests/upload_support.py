"""Documents as the API takes them in, and a service worker takes them up."""

from datetime import timedelta
from hashlib import sha256
from uuid import UUID

from sqlalchemy.orm import Session

from jobs import document_work, documents, files
from jobs.document_models import Document
from jobs.document_states import DocumentKind
from jobs.document_work import DocumentClaim
from jobs.documents import NewDocument
from jobs.models import DEFAULT_TENANT
from jobs.storage import RowStore

DAY = timedelta(days=1)
LEASE = timedelta(seconds=30)


def upload(
    session: Session, content: bytes = b"Hello", *, tenant_id: UUID = DEFAULT_TENANT
) -> tuple[Document, bool]:
    """The document of these bytes, as the API makes it."""
    file = documents.create_file(session, tenant_id=tenant_id)
    part = RowStore().put(content)
    files.add_part(session, file.id, part, start=0, tenant_id=tenant_id)
    new = NewDocument(file.id, sha256(content).digest(), len(content), DocumentKind.TXT, "a.txt")
    return documents.finish_upload(session, new, tenant_id=tenant_id, lifetime=DAY)


def claim_one(session: Session) -> DocumentClaim:
    claim = document_work.claim_extraction(session, lease=LEASE)
    assert claim is not None
    return claim
