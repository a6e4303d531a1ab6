"""Documents for an external extractor: tried again, given up with its error, and in nobody's way."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from uuid import UUID

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from hostile.servers import Conduct, answering, serving
from jobs import documents, files
from jobs.documents import NewDocument
from jobs.files.storage import RowStore
from jobs.models import DEFAULT_TENANT
from jobs.models.document import Document
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DocumentSettings
from jobs.states.document import DocumentKind
from support import PATIENCE, new_tenant, runner_of
from worker.documents.extractor import DocumentExtractor
from worker.documents.remote import ExternalExtractor
from worker.documents.rounds import divide

PAGES = [{"page_content": f"Page {number} of it.", "metadata": {"page": number}} for number in (1, 2)]


@dataclass
class Lanes:
    """Both works of a service worker with an external extractor."""

    own: DocumentExtractor
    remote: DocumentExtractor
    sessions: sessionmaker[Session]

    def run(self, work: DocumentExtractor) -> bool:
        """Whether a document waited; it was worked on."""
        return runner_of(self.sessions).run_next(work) is not None

    def overdue(self) -> None:
        """What was put off is due now."""
        with self.sessions.begin() as session:
            session.execute(text("UPDATE documents SET run_after = now() - interval '1 s'"))


Start = Callable[[Conduct], AbstractContextManager[Lanes]]


def answer(body: bytes, status: str = "200 OK") -> Conduct:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return answering(head.encode(), body)


@pytest.fixture
def lanes(sessions: sessionmaker[Session], tokenizer: Tokenizer) -> Start:
    @contextmanager
    def start(conduct: Conduct) -> Iterator[Lanes]:
        with serving(conduct) as server:
            settings = DocumentSettings(
                extractor_url=f"http://127.0.0.1:{server.port}",
                extractor_kind="open-webui",
                extractor_formats=("pdf",),
                extractor_seconds=1000,
            )
            own, remote = divide(settings.extractor_formats)
            made = [
                DocumentExtractor(
                    settings, tokenizer, RowStore(), kind=kind, external=external, on_ended=lambda: None
                )
                for kind, external in ((own, None), (remote, ExternalExtractor.of_settings(settings)))
            ]
            yield Lanes(made[0], made[1], sessions)

    return start


def upload(sessions: sessionmaker[Session], kind: DocumentKind, *, tenant_id: UUID = DEFAULT_TENANT) -> UUID:
    with sessions.begin() as session:
        file = documents.create_file(session, tenant_id=tenant_id)
        content = f"%PDF-1.4 {file.id}".encode()
        files.add_part(session, file.id, RowStore().put(content), start=0, tenant_id=tenant_id)
        new = NewDocument(file.id, sha256(content).digest(), len(content), kind, f"a.{kind}")
        document, _ = documents.finish_upload(session, new, tenant_id=tenant_id, lifetime=timedelta(days=1))
        return document.id


def seen(sessions: sessionmaker[Session], document_id: UUID) -> Document:
    with sessions() as session:
        return session.scalars(select(Document).where(Document.id == document_id)).one()


def test_an_external_extractor_reads_its_formats_and_we_the_others(
    lanes: Start, sessions: sessionmaker[Session]
) -> None:
    pdf, txt = upload(sessions, DocumentKind.PDF), upload(sessions, DocumentKind.TXT)
    with lanes(answer(json.dumps(PAGES).encode())) as both:
        assert (both.run(both.own), both.run(both.own)) == (True, False)
        assert (seen(sessions, txt).state, seen(sessions, pdf).state) == ("ready", "extracting")
        assert (both.run(both.remote), both.run(both.remote)) == (True, False)
    found = seen(sessions, pdf)
    assert (found.state, found.num_pages, found.pages) == ("ready", 2, [0, 15])
    assert found.num_tokens


def test_a_failing_extractor_is_asked_again_and_then_named(
    lanes: Start, sessions: sessionmaker[Session]
) -> None:
    pdf = upload(sessions, DocumentKind.PDF)
    with lanes(answer(b"", "503 Busy")) as both:
        attempts = 0
        while both.run(both.remote):
            attempts += 1
            assert not both.run(both.remote), "it waits for its time"
            both.overdue()
    found = seen(sessions, pdf)
    assert attempts == both.remote.kind.max_attempts
    assert found.state == "failed"
    message = "The external extractor failed (HTTP 503)."
    assert found.error == {"code": "extractor_unavailable", "message": message}


def test_a_document_that_an_extractor_refuses_is_not_sent_again(
    lanes: Start, sessions: sessionmaker[Session]
) -> None:
    pdf = upload(sessions, DocumentKind.PDF)
    with lanes(answer(b"", "422 No")) as both:
        assert both.run(both.remote)
    found = seen(sessions, pdf)
    assert found.error is not None
    assert (found.state, found.error["code"], found.attempt) == ("failed", "extractor_refused", 1)


def test_an_extractor_that_hangs_delays_no_other_tenant(
    lanes: Start, sessions: sessionmaker[Session]
) -> None:
    asked, let_go = threading.Event(), threading.Event()

    def hang(connected: socket.socket) -> None:
        asked.set()
        let_go.wait(PATIENCE)
        answer(json.dumps(PAGES).encode())(connected)

    with sessions.begin() as session:
        other = new_tenant(session)
    pdf = upload(sessions, DocumentKind.PDF)
    with lanes(hang) as both:
        waiting = threading.Thread(target=both.run, args=(both.remote,))
        waiting.start()
        try:
            assert asked.wait(PATIENCE)
            mine, theirs = (
                upload(sessions, DocumentKind.TXT, tenant_id=tenant_id)
                for tenant_id in (DEFAULT_TENANT, other)
            )
            assert both.run(both.own)
            assert both.run(both.own)
            assert [seen(sessions, each).state for each in (mine, theirs)] == ["ready", "ready"]
            assert seen(sessions, pdf).state == "extracting"
        finally:
            let_go.set()
            waiting.join(PATIENCE)
    assert seen(sessions, pdf).state == "ready"
