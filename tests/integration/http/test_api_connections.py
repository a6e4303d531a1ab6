"""Callers that are slow, silent or many: the API ends them itself, and nobody else notices."""

import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from secrets import token_hex
from typing import Final

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess, Serve, error_of
from jobs import tenants
from jobs.tenants import keys
from jobs.tenants.keys import Scope
from support import API_KEY, PATIENCE, eventually

HEAD: Final = b"GET /health/live HTTP/1.1\r\nHost: a\r\n"
KEY: Final = f"Authorization: Bearer {API_KEY}\r\n".encode()
SUBMIT: Final = b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\n" + KEY
MAX_CONNECTIONS: Final = 24


@pytest.fixture(scope="module")
def server(serve: Serve) -> Iterator[ApiProcess]:
    """The service with short limits."""
    limits = {
        "HEAD_SECONDS": "0.5",
        "BODY_IDLE_SECONDS": "2",
        "READ_IDLE_SECONDS": "0.8",
        "KEEP_ALIVE_SECONDS": "60",
        "MIN_BODY_RATE": "100",
        "MAX_CONNECTIONS": str(MAX_CONNECTIONS),
    }
    variables = {f"LONGBATCH_API__{name}": value for name, value in limits.items()}
    with serve(**variables) as process:
        yield process


@pytest.fixture
def other_key(sessions: sessionmaker[Session]) -> str:
    """A key of another tenant."""
    with sessions.begin() as session:
        tenant = tenants.create(session, f"t-{token_hex(4)}")
        return keys.create(session, tenant_id=tenant.id, name="", scopes=list(Scope)).secret


def connect(server: ApiProcess, sent: bytes = b"") -> socket.socket:
    """A connection on which this was sent."""
    host, port = server.url.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)), timeout=PATIENCE)
    made.sendall(sent)
    return made


def waiting_for(job_id: str) -> bytes:
    """The head of a long poll, but for its last line."""
    return f"GET /v1/jobs/{job_id}?wait=60 HTTP/1.1\r\nHost: a\r\n".encode() + KEY


def read_to_the_end(connection: socket.socket) -> bytes:
    """What the server sends until it closes; fails when it does not."""
    with closing(connection):
        return b"".join(iter(lambda: connection.recv(2**16), b""))


def read_one(connection: socket.socket) -> bytes:
    """One answer in JSON, whole, on a connection that stays open."""
    answer = b""
    while not answer.endswith(b"}"):
        piece = connection.recv(2**16)
        assert piece, answer
        answer += piece
    return answer


def is_silent(connection: socket.socket) -> bool:
    """Whether the server has neither answered nor closed."""
    readable, _, _ = select.select([connection], [], [], 0)
    return not readable


def drip(connection: socket.socket, *, at_most: int = 400) -> bytes:
    """What the server sends to a caller that sends a byte at every twentieth of a second until it closes."""
    connection.settimeout(0.05)
    for _ in range(at_most):
        try:
            connection.sendall(b"a")
            if answer := connection.recv(2**16):
                return answer
        except TimeoutError:
            continue
        except ConnectionError:
            return b""
    raise AssertionError("the server still listens")


def test_half_sent_heads_end_while_others_go_on(server: ApiProcess, http: httpx2.Client) -> None:
    job_id = http.post("/v1/jobs", json={"input": "a"}).json()["id"]
    waiting = connect(server, waiting_for(job_id) + b"Connection: close\r\n\r\n")
    halves = [connect(server, sent) for sent in (HEAD, HEAD[:3], b"\r\n", HEAD + b"A: b\r\n" * 50)]
    silent = connect(server)
    for half in halves:
        answer = read_to_the_end(half)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    assert read_to_the_end(silent) == b""
    http.post(f"/v1/jobs/{job_id}/cancel")
    assert b'"state":"cancelled"' in read_to_the_end(waiting)


def test_a_head_that_drips_ends_too(server: ApiProcess, http: httpx2.Client) -> None:
    with closing(connect(server, HEAD + b"A: ")) as connection:
        assert drip(connection).startswith(b"HTTP/1.1 408 ")
    assert http.get("/health/live").status_code == 200


def test_a_second_head_on_a_kept_connection_has_the_same_limit(server: ApiProcess) -> None:
    with closing(connect(server, HEAD + b"\r\n")) as connection:
        assert read_one(connection).startswith(b"HTTP/1.1 200 ")
        connection.sendall(HEAD)
        assert read_to_the_end(connection).startswith(b"HTTP/1.1 408 ")


def test_half_of_the_next_head_does_not_end_the_answer_before_it(
    server: ApiProcess, http: httpx2.Client
) -> None:
    job_id = http.post("/v1/jobs", json={"input": "a"}).json()["id"]
    early = connect(server, waiting_for(job_id) + b"\r\n" + HEAD)
    later = connect(server, HEAD)
    assert read_to_the_end(later).startswith(b"HTTP/1.1 408 ")
    http.post(f"/v1/jobs/{job_id}/cancel")
    assert b'"state":"cancelled"' in read_to_the_end(early)


@pytest.mark.parametrize("line", [b"A: " + b"b" * 100 + b"\r\n", b"A" * 100], ids=["many", "endless"])
def test_heads_and_trailers_without_end_are_refused(server: ApiProcess, line: bytes) -> None:
    chunked = SUBMIT + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    for start in (HEAD, chunked):
        with closing(connect(server, start)) as connection:
            answer = b""
            try:
                for _ in range(4000):
                    connection.sendall(line)
                answer = connection.recv(2**16)
            except ConnectionError:
                continue  # the answer was lost to what we sent after it
            assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))


def test_a_body_that_stops_is_given_up_with_its_request(server: ApiProcess, http: httpx2.Client) -> None:
    answer = read_to_the_end(connect(server, SUBMIT + b'Content-Length: 100\r\n\r\n{"input":'))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"No body data arrived" in answer
    eventually(lambda: "longbatch_http_open_requests 1.0" in http.get("/metrics").text)


def test_a_body_that_comes_slowly_is_taken(server: ApiProcess) -> None:
    body = b'{"input":"a"}' + b" " * 27
    with closing(connect(server, SUBMIT + b"Content-Length: %d\r\n\r\n" % len(body))) as slow:
        for start in range(0, len(body), 20):  # each after a whole limit of heads has passed
            assert read_to_the_end(connect(server, HEAD)).startswith(b"HTTP/1.1 408 ")
            slow.sendall(body[start : start + 20])
        assert slow.recv(2**16).startswith(b"HTTP/1.1 202 ")


def test_the_rest_of_a_refused_body_is_not_awaited_for_long(server: ApiProcess) -> None:
    refused = b"GET /health/live HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"
    with closing(connect(server, refused)) as connection:
        assert read_one(connection).startswith(b"HTTP/1.1 200 ")
        assert drip(connection) == b""


def test_a_reader_that_takes_nothing_is_cut_off(server: ApiProcess, http: httpx2.Client) -> None:
    form: dict[str, tuple[str | None, str | bytes]] = {
        "purpose": (None, "batch"),
        "file": ("a.jsonl", b"x" * 16 * 2**20),
    }
    file_id = http.post("/v1/files", files=form).json()["id"]
    request = f"GET /v1/files/{file_id}/content HTTP/1.1\r\nHost: a\r\n".encode() + KEY + b"\r\n"
    with closing(connect(server, request)) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
        eventually(lambda: "longbatch_http_open_requests 1.0" in http.get("/metrics").text)
        assert len(read_to_the_end(connection)) < 16 * 2**20
    assert len(http.get(f"/v1/files/{file_id}/content").content) == 16 * 2**20


def test_a_body_that_drips_ends_below_the_least_rate(server: ApiProcess) -> None:
    with closing(connect(server, SUBMIT + b'Content-Length: 100000\r\n\r\n{"input":"')) as connection:
        answer = drip(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"slower than 100 bytes/s" in answer


def test_idle_connections_make_room_for_new_callers(server: ApiProcess) -> None:
    with ExitStack() as kept:
        idle = [kept.enter_context(closing(connect(server, HEAD + b"\r\n"))) for _ in range(MAX_CONNECTIONS)]
        for each in idle:
            assert read_one(each).startswith(b"HTTP/1.1 200 ")
        with server.client() as new:
            assert new.get("/v1/jobs").status_code == 200
            assert new.get("/health/live").status_code == 200
        assert idle[0].recv(1) == b""
        idle[-1].sendall(HEAD + b"\r\n")
        assert read_one(idle[-1]).startswith(b"HTTP/1.1 200 ")


def test_bodies_without_a_key_make_room_for_callers_with_one(server: ApiProcess) -> None:
    strange = SUBMIT.replace(KEY, b"") + b"Content-Length: 100000\r\n\r\n{"
    with ExitStack() as held:
        slow = [held.enter_context(closing(connect(server, strange))) for _ in range(2 * MAX_CONNECTIONS)]
        with server.client() as http:
            assert http.post("/v1/jobs", json={"input": "a"}).status_code == 202
        answer = read_to_the_end(slow[0])
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"connection limit" in answer


def test_a_tenant_has_at_most_as_many_requests_in_progress_as_places_are_free(
    server: ApiProcess, http: httpx2.Client, other_key: str
) -> None:
    job_id = http.post("/v1/jobs", json={"input": "a"}).json()["id"]
    half = MAX_CONNECTIONS // 2
    with ExitStack() as held:
        waiting: list[socket.socket] = []

        def is_at_limit() -> bool:
            """Whether all wait. Their tenant is known once their key has been looked up.

            Until then they make room for each other, while connections of an earlier test still close.
            """
            waiting[:] = [each for each in waiting if is_silent(each)]
            while len(waiting) < half:
                waiting.append(held.enter_context(closing(connect(server, waiting_for(job_id) + b"\r\n"))))
            return http.get("/v1/jobs").status_code == 429

        eventually(is_at_limit)
        refused = http.get("/v1/jobs")
        assert error_of(refused)["code"] == "open_request_limit_exceeded"
        assert str(half) in error_of(refused)["message"]
        with server.client(api_key=other_key) as neighbour:
            assert neighbour.get("/v1/jobs").status_code == 200
    eventually(lambda: http.get("/v1/jobs").status_code == 200)


def test_slow_bodies_of_one_key_leave_others_connections(serve: Serve, other_key: str) -> None:
    with serve(LONGBATCH_API__MAX_CONNECTIONS="400") as server, ExitStack() as held:
        slow = SUBMIT + b"Content-Length: 100000\r\n\r\n{"
        dripping = [held.enter_context(closing(connect(server, slow))) for _ in range(600)]
        for _ in range(20):
            for each in dripping:
                with suppress(ConnectionError):
                    each.sendall(b" ")
            with server.client(api_key=other_key) as neighbour:
                assert neighbour.post("/v1/jobs", json={"input": "a"}).status_code == 202
