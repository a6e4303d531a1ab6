"""Service workers that extract documents: killed, stopped, and fed with a corpus of bad files."""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from uuid import UUID

import pytest
from pydantic import SecretStr
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from cli.stack.servers.valkey import EmbeddedValkey
from document_support import SMALL_MEMORY_MB, bad_documents, make_pdf, prose_page
from hostile.servers import answering, serving
from jobs import documents, files
from jobs.documents import NewDocument
from jobs.documents.kinds import HEAD_BYTES, TAIL_BYTES, UploadHints, find_kind
from jobs.files.storage import PART_BYTES, RowStore
from jobs.models import DEFAULT_TENANT
from jobs.models.document import Document
from jobs.models.file import File
from jobs.settings import BrokerSettings, DatabaseSettings, DocumentSettings, Settings
from jobs.states.file import FileState
from support import PATIENCE, eventually
from worker_support import WorkerProcess

LIFETIME = timedelta(days=1)
Spawn = Callable[[DocumentSettings], WorkerProcess]


@pytest.fixture
def spawn(database_settings: DatabaseSettings, valkey: EmbeddedValkey, tmp_path: Path) -> Iterator[Spawn]:
    """Starts a service worker; none is left behind."""
    started: list[WorkerProcess] = []

    def start(settings: DocumentSettings) -> WorkerProcess:
        whole = Settings(
            database=database_settings,
            broker=BrokerSettings(url=SecretStr(valkey.url)),
            documents=settings,
        )
        started.append(WorkerProcess("service", whole, tmp_path / f"{len(started)}.log"))
        return started[-1]

    yield start
    for each in started:
        each.end()


def upload(sessions: sessionmaker[Session], content: bytes, filename: str) -> UUID:
    """The document of these bytes, stored as the API does."""
    with sessions.begin() as session:
        file = documents.create_file(session, tenant_id=DEFAULT_TENANT)
        for start in range(0, len(content), PART_BYTES):
            part = RowStore().put(content[start : start + PART_BYTES])
            files.add_part(session, file.id, part, start=start, tenant_id=DEFAULT_TENANT)
        kind = find_kind(UploadHints(content[:HEAD_BYTES], content[-TAIL_BYTES:], filename))
        new = NewDocument(file.id, sha256(content).digest(), len(content), kind, filename)
        document, _ = documents.finish_upload(session, new, tenant_id=DEFAULT_TENANT, lifetime=LIFETIME)
        return document.id


def by_state(sessions: sessionmaker[Session]) -> Mapping[str, int]:
    with sessions() as session:
        counted = select(Document.state, func.count()).group_by(Document.state)
        return {state: num for state, num in session.execute(counted)}  # noqa: C416  # rows are no pairs to mypy


def test_an_external_extractor_reads_what_is_for_it(spawn: Spawn, sessions: sessionmaker[Session]) -> None:
    body = json.dumps({"page_content": "What it read.", "metadata": {}}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with serving(answering(head.encode(), body)) as extractor:
        settings = DocumentSettings(
            extractor_url=f"http://127.0.0.1:{extractor.port}",
            extractor_kind="open-webui",
            extractor_formats=("pdf",),
        )
        spawn(settings)
        upload(sessions, b"%PDF-1.4 nothing that we could read", "a.pdf")
        upload(sessions, b"A text.", "a.txt")
        eventually(lambda: by_state(sessions) == {"ready": 2})
    assert extractor.num_connections == 1


def children(pid: int) -> list[int]:
    """Processes that this one started to extract a document, also once it is gone."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if f"--parent={pid}".encode() in line.split(b"\0"):
                found.append(int(folder.name))
    return found


def peak_mib(pid: int) -> int:
    """The most memory that this process ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


@pytest.mark.timeout(300)
def test_kills_lose_no_document_and_leave_no_process(sessions: sessionmaker[Session], spawn: Spawn) -> None:
    book = [prose_page(number) for number in range(24)]
    made = {
        upload(sessions, make_pdf([f"Document {number}", *book]), f"{number}.pdf") for number in range(24)
    }
    settings = DocumentSettings(lease_seconds=3)
    for num_ready in (2, 8, 14):
        worker = spawn(settings)
        eventually(lambda: by_state(sessions).get("ready", 0) >= num_ready, interval=0.1)  # noqa: B023  # at once
        eventually(lambda: children(worker.process.pid))  # noqa: B023
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        eventually(lambda: not children(worker.process.pid))  # noqa: B023
    spawn(settings)
    eventually(lambda: by_state(sessions) == {"ready": 24}, timeout=120, interval=0.2)
    with sessions() as session:
        ready = session.scalars(select(Document)).all()
        assert {document.id for document in ready} == made
        assert {(document.num_pages, document.error) for document in ready} == {(25, None)}
        assert max(document.attempt for document in ready) <= 4
        assert set(session.scalars(select(File.state))) == {FileState.DELETED}
        for document in ready[::10]:
            text = documents.load_text(session, document.id)
            assert text[document.pages[1] :].startswith("Page number 0\n")


def test_a_worker_that_is_stopped_gives_its_documents_back_at_once(
    sessions: sessionmaker[Session], spawn: Spawn
) -> None:
    hostile = b"<div>a" * 3_000_000
    document_id = upload(sessions, hostile, "a.html")
    worker = spawn(DocumentSettings())
    eventually(lambda: children(worker.process.pid))
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(timeout=PATIENCE) == 0
    with sessions() as session:
        document = session.get_one(Document, document_id)
        assert (document.state, document.lease_id, document.attempt) == ("extracting", None, 0)
    assert children(worker.process.pid) == []


@pytest.mark.timeout(300)
def test_bad_documents_fail_alone_and_the_worker_stays_small(
    sessions: sessionmaker[Session], spawn: Spawn
) -> None:
    corpus = bad_documents()
    worker = spawn(DocumentSettings(extraction_seconds=60, extraction_memory_mb=SMALL_MEMORY_MB))
    first = upload(sessions, b"A good document.", "first.txt")
    eventually(lambda: by_state(sessions) == {"ready": 1})
    before = peak_mib(worker.process.pid)
    sent = {upload(sessions, data, filename): (name, code) for name, (data, filename, code) in corpus.items()}
    last = upload(sessions, b"Another good document.", "last.txt")
    eventually(lambda: "extracting" not in by_state(sessions), timeout=180, interval=0.2)
    with sessions() as session:
        for document in session.scalars(select(Document)):
            if document.id in {first, last}:
                assert document.state == "ready"
                continue
            name, code = sent[document.id]
            assert document.error is not None, name
            assert (name, document.error["code"], document.attempt) == (name, code, 1)
    assert worker.process.poll() is None
    assert children(worker.process.pid) == []
    grown = peak_mib(worker.process.pid) - before
    assert grown < 128, f"{before} MiB grew by {grown}"
