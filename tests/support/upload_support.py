"""Documents as the API takes them in, and a service worker takes them up."""

from datetime import timedelta
from hashlib import sha256
from uuid import UUID

from sqlalchemy.orm import Session, sessionmaker

from jobs import documents, files, turns
from jobs.documents import NewDocument, extraction
from jobs.documents.extraction import DocumentClaim
from jobs.files.storage import PartStore, RowStore
from jobs.models import DEFAULT_TENANT
from jobs.models.document import Document
from jobs.models.turn import EXTRACTION
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DocumentSettings
from jobs.states.document import DocumentKind
from support import runner_of
from worker.documents.extractor import DocumentExtractor

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
    claim = claim_next(session)
    assert claim is not None
    return claim


def claim_next(session: Session) -> DocumentClaim | None:
    """The document whose turn it is, as a service worker takes it; None: none waits."""
    turn = turns.claim(session, EXTRACTION, lease=LEASE)
    session.expire_all()
    return extraction.begin_extraction(session, turn) if turn else None


class Extractor:
    """Extracts what waits, when it is told."""

    def __init__(
        self, sessions: sessionmaker[Session], tokenizer: Tokenizer, store: PartStore | None = None
    ) -> None:
        self._runner = runner_of(sessions)
        self._work = DocumentExtractor(
            DocumentSettings(), tokenizer, store or RowStore(), on_ended=lambda: None
        )

    def run_once(self) -> None:
        """Every document that waited has ended."""
        while self._runner.run_next(self._work):
            pass
