"""What a session had under way when it or its key ended: streams end, and what arrives late is not stored."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Event

import httpx2
import pytest
from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess, Serve, error_of
from console_pages.browser import SAME_ORIGIN, Browser, browsing, new_key
from jobs.models import ConsoleSession
from jobs.models.document import Document
from jobs.tenants import keys
from jobs.tenants.keys import NewKey, Scope
from support import PATIENCE, eventually, submit_one

BOUNDARY = "7d1f"
PART = (
    f"--{BOUNDARY}\r\nContent-Disposition: form-data; name={{}}\r\nContent-Type: text/plain\r\n\r\n{{}}\r\n"
)


@pytest.fixture(scope="module")
def server(serve: Serve) -> Iterator[ApiProcess]:
    """The service, which looks at keys and sessions all the time."""
    variables = {"LONGBATCH_API__KEY_CACHE_SECONDS": "0", "LONGBATCH_API__RECHECK_SECONDS": "0.05"}
    with serve(**variables) as process:
        yield process


@pytest.fixture
def key(sessions: sessionmaker[Session]) -> NewKey:
    return new_key(sessions, Scope.READ, Scope.SUBMIT)


def revoke(sessions: sessionmaker[Session], key: NewKey) -> None:
    with sessions.begin() as session:
        keys.revoke(session, session.merge(key.row))


@pytest.mark.parametrize("how", ["signed out", "session deleted", "key revoked"])
def test_a_live_page_ends_with_its_session(
    server: ApiProcess,
    sessions: sessionmaker[Session],
    key: NewKey,
    background: Callable[..., Future[str]],
    how: str,
) -> None:
    with sessions.begin() as session:
        submit_one(session)
    with browsing(server, key.secret) as visitor, browsing(server, key.secret) as beside:
        opened = Event()

        def watch(someone: Browser) -> str:
            address = "/console/jobs/live"
            with someone.client.stream("GET", address, headers={"Accept": "text/event-stream"}) as answer:
                assert answer.status_code == 200
                opened.set()
                return "".join(answer.iter_text())  # until the server ends it

        ends = background(watch, visitor)
        assert opened.wait(PATIENCE)
        if how == "signed out":
            (csrf,) = set(visitor.page("/console/").xpath("//input[@name='csrf']/@value"))
            assert visitor.post("/console/sign-out", csrf=str(csrf)).status_code == 303
        elif how == "session deleted":  # as another process does it
            with sessions.begin() as session:
                session.execute(delete(ConsoleSession))
        else:
            revoke(sessions, key)
        assert "event: error" in ends.result(timeout=PATIENCE)
        is_over = beside.client.get("/console/jobs").status_code == 303
        assert is_over == (how != "signed out"), "another session of the key goes on"


def test_a_live_page_ends_with_the_session_that_ended_before_it_began(
    server: ApiProcess,
    sessions: sessionmaker[Session],
    key: NewKey,
    background: Callable[..., Future[httpx2.Response]],
) -> None:
    with sessions.begin() as session:
        submit_one(session)
    with browsing(server, key.secret) as visitor:
        with sessions.begin() as holding, sessions.begin() as other:
            holding.execute(text("LOCK TABLE jobs"))
            waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'jobs'::regclass AND NOT granted)"
            answer = background(visitor.client.get, "/console/jobs/live")
            eventually(lambda: holding.scalar(text(waiting)))
            other.execute(delete(ConsoleSession))
        assert "event: error" in answer.result(timeout=PATIENCE).text


def test_a_document_whose_key_is_revoked_while_it_arrives_is_not_stored(
    server: ApiProcess, sessions: sessionmaker[Session], key: NewKey
) -> None:
    def trickle() -> Iterator[bytes]:
        yield b"The sea is calm."
        revoke(sessions, key)
        yield b" It rains."

    with server.client(api_key=key.secret) as http:
        answer = http.post("/v1/documents?filename=a.txt", content=trickle())
    assert answer.status_code == 401
    assert error_of(answer)["code"] == "invalid_api_key"
    assert num_documents(sessions) == 0


def test_files_whose_session_ends_while_they_arrive_are_not_stored(
    server: ApiProcess, sessions: sessionmaker[Session], key: NewKey
) -> None:
    with browsing(server, key.secret) as visitor:
        (csrf,) = set(visitor.page("/console/summaries/new").xpath("//input[@name='csrf']/@value"))

        def trickle() -> Iterator[bytes]:
            yield PART.format('"csrf"', csrf).encode()
            yield PART.format('"files"; filename="a.txt"', "The sea is calm.").encode()[:-4]
            revoke(sessions, key)
            yield f"\r\n--{BOUNDARY}--\r\n".encode()

        headers = SAME_ORIGIN | {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        answer: httpx2.Response = visitor.client.post(
            "/console/summaries/new", content=trickle(), headers=headers
        )
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/console/sign-in")
    assert num_documents(sessions) == 0


def num_documents(sessions: sessionmaker[Session]) -> int:
    with sessions() as session:
        return session.scalar(select(func.count()).select_from(Document)) or 0
