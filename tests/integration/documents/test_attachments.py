"""Attached files: documents of their own, within limits, and named where they are not read."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from document_support import Extractor, mail_with, make_pdf, pdf_with, upload
from jobs import documents, ids
from jobs.documents.views import DocumentObject, document_object
from jobs.models import DEFAULT_TENANT
from jobs.models.document import Document
from jobs.models.file import File
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import LimitSettings
from jobs.states.document import DocumentKind
from jobs.states.file import FileState

Sessions = sessionmaker[Session]
PDF = make_pdf(["The invoice is over 4,200 euros."])


def extracted(
    sessions: Sessions, tokenizer: Tokenizer, content: bytes, *, limits: LimitSettings | None = None
) -> DocumentObject:
    """The mail of these bytes, once it and all that is attached to it have been read."""
    with sessions.begin() as session:
        document_id = upload(session, content, kind=DocumentKind.EML)[0].id
    Extractor(sessions, tokenizer, limits=limits).run_once()
    with sessions() as session:
        return document_object(documents.get(session, document_id, tenant_id=DEFAULT_TENANT))


def warning(of: DocumentObject, code: str) -> str:
    return next((str(each["message"]) for each in of["warnings"] if each["code"] == code), "")


def by_name(sessions: Sessions, name: str) -> Document:
    with sessions() as session:
        return session.scalars(select(Document).where(Document.filename == name)).one()


def test_attached_files_are_documents_of_their_own(sessions: Sessions, tokenizer: Tokenizer) -> None:
    found = extracted(
        sessions, tokenizer, mail_with("Invoice", ("invoice.pdf", PDF), ("tool.bin", b"\x7fELF\0\1"))
    )
    (attached,) = found["attachments"]
    child = by_name(sessions, "invoice.pdf")
    assert attached == {"filename": "invoice.pdf", "document_id": ids.document_id(child.id)}
    assert (child.state, child.kind, child.depth) == ("ready", "pdf", 1)
    with sessions() as session:
        assert "4,200 euros" in documents.load_text(session, child.id)
        left = select(func.count()).where(File.state == FileState.UPLOADING)
        assert session.scalar(left) == 0, "no bytes wait for a document"
    assert "invoice.pdf" in warning(found, "attachments_separate")
    unread = warning(found, "attachments_not_read")
    assert "tool.bin" in unread
    assert "invoice.pdf" not in unread


def test_a_file_attached_twice_or_sent_before_is_one_document(
    sessions: Sessions, tokenizer: Tokenizer
) -> None:
    with sessions.begin() as session:
        before = upload(session, PDF, kind=DocumentKind.PDF)[0].id
    found = extracted(sessions, tokenizer, mail_with("Two", ("a.pdf", PDF), ("b.pdf", PDF)))
    assert [each["document_id"] for each in found["attachments"]] == [ids.document_id(before)] * 2


def test_files_within_files_are_read_to_a_depth_and_named_beyond(
    sessions: Sessions, tokenizer: Tokenizer
) -> None:
    content = PDF
    for depth in (3, 2):
        content = pdf_with(f"within-{depth}.pdf", content)
    extracted(sessions, tokenizer, mail_with("Outer", ("within-1.pdf", content)))
    deepest = by_name(sessions, "within-2.pdf")
    assert (deepest.state, deepest.depth, deepest.attachments) == ("ready", 2, [])
    assert "within-3.pdf" in warning(document_object(deepest), "attachments_not_read")


def test_a_full_quota_names_the_file_and_keeps_the_mail(sessions: Sessions, tokenizer: Tokenizer) -> None:
    limits = LimitSettings(max_stored_bytes=100)
    found = extracted(sessions, tokenizer, mail_with("Big", ("big.pdf", PDF)), limits=limits)
    assert found["state"] == "ready"
    assert found["attachments"] == []
    assert "big.pdf" in warning(found, "attachments_not_read")


def test_a_deleted_mail_names_no_file(sessions: Sessions, tokenizer: Tokenizer) -> None:
    extracted(sessions, tokenizer, mail_with("Secret", ("the-secret.pdf", PDF)))
    mine = by_name(sessions, "a.eml")
    with sessions.begin() as session:
        documents.remove(session, mine.id, tenant_id=DEFAULT_TENANT)
    with sessions() as session:
        row = session.get_one(Document, mine.id)
        assert (row.attachments, row.warnings) == ([], [])
