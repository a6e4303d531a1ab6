"""Webhook exchanges with real sockets whose other end misbehaves."""

import asyncio
import gzip
import queue
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from hostile.servers import (
    Conduct,
    answering,
    forever,
    half_closing,
    make_certificate,
    resetting,
    serving,
    serving_as,
    silent,
)
from jobs.webhooks import ParsedUrl
from support import PATIENCE
from webhook_support import awaited, exchange, post
from worker.webhooks import exchange as transport
from worker.webhooks.connect import Failure
from worker.webhooks.exchange import ExchangeResult
from worker.webhooks.protocol import MAX_RECEIVED_BYTES, MAX_RESPONSE_BYTES

BODY = b'{"id":"job_1"}'
SECONDS = timedelta(seconds=1)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def deliver(
    url: str, *, deadline: timedelta = 5 * SECONDS, tls: ssl.SSLContext | None = None
) -> ExchangeResult:
    """An exchange in which hook.test is an allowed host on loopback."""
    return post(
        url,
        BODY,
        {"Content-Type": "application/json", "webhook-id": "evt_1"},
        allowed_hosts=["hook.test", "127.0.0.1", "::1"],
        deadline=deadline,
        resolve=lambda host, _: ["127.0.0.1"] if host == "hook.test" else [host],
        tls=tls,
    )


def test_an_allowed_host_receives_the_whole_request_and_its_status_comes_back() -> None:
    with serving(answering(OK)) as server:
        answer = deliver(server.url)
    assert (answer.status, answer.error_code) == (200, None)
    assert answer.num_bytes == len(OK)
    assert timedelta(0) < answer.latency < 5 * SECONDS
    (request,) = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /hook?x=1 HTTP/1.1"
    assert {
        f"Host: hook.test:{server.port}",
        f"Content-Length: {len(BODY)}",
        "Accept-Encoding: identity",
        "Content-Type: application/json",
        "webhook-id: evt_1",
    } <= set(lines)
    assert body == BODY


def test_an_allowed_ipv6_host_is_reached() -> None:
    with serving(answering(OK), host="::1") as server:
        assert deliver(f"http://[::1]:{server.port}/").status == 200
    assert f"Host: [::1]:{server.port}\r\n".encode() in server.requests[0]


@pytest.mark.parametrize("status", [204, 302, 400, 410, 500, 503])
def test_every_status_is_an_answer(status: int) -> None:
    with serving(answering(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())) as server:
        assert deliver(server.url).status == status


@pytest.mark.parametrize(
    "conduct",
    [
        pytest.param(silent, id="silence"),
        pytest.param(forever(b"X-Drip: 1\r\n", first=b"HTTP/1.1 200 OK\r\n", pause=0.02), id="headers"),
        pytest.param(forever(b"H", first=b"", pause=0.02), id="status-line"),
    ],
)
def test_a_server_that_never_gets_to_its_status_is_left_at_the_deadline(conduct: Conduct) -> None:
    with serving(conduct) as server:
        answer = deliver(server.url, deadline=0.5 * SECONDS)
        assert answer.error_code == Failure.TIMED_OUT
        assert 0.5 * SECONDS <= answer.latency < 1.5 * SECONDS


def test_a_body_that_drips_costs_no_more_than_the_deadline() -> None:
    slow = forever(b".", first=b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", pause=0.02)
    with serving(slow) as server:
        answer = deliver(server.url, deadline=0.5 * SECONDS)
    assert answer.status == 200
    assert answer.latency < 1.5 * SECONDS


@pytest.mark.parametrize(
    "conduct",
    [
        pytest.param(forever(b"x" * 65536, first=b"HTTP/1.1 200 OK\r\n\r\n"), id="endless"),
        pytest.param(
            answering(
                b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n",
                gzip.compress(b"\x00" * 100_000_000),
            ),
            id="gzip-bomb",
        ),
        pytest.param(
            forever(b"1\r\nx\r\n", first=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            id="chunks",
        ),
    ],
)
def test_a_huge_body_is_read_up_to_the_limit_and_never_unpacked(conduct: Conduct) -> None:
    with serving(conduct) as server:
        answer = deliver(server.url)
    assert answer.status == 200
    assert answer.num_bytes == MAX_RESPONSE_BYTES
    assert answer.latency < 5 * SECONDS


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_stranger_cannot_put_more_than_64_kb_onto_this_machine(
    scheme: str, certificate: Path, server_tls: ssl.SSLContext
) -> None:
    """Counted by the sender: what is still in its own kernel when the connection breaks is small here."""
    num_sent = 0

    def flood(connected: socket.socket) -> None:
        nonlocal num_sent
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        connected.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            num_sent += connected.send(b"x" * 1024)

    with serving(flood, tls=server_tls if scheme == "https" else None) as server:
        answer = deliver(
            f"{scheme}://hook.test:{server.port}/", tls=ssl.create_default_context(cafile=str(certificate))
        )
    assert answer.status == 200
    assert MAX_RESPONSE_BYTES - 100 <= num_sent <= 64_000


@pytest.mark.parametrize(
    "conduct",
    [
        pytest.param(forever(b"HTTP/1.1 103 Early Hints\r\n\r\n"), id="1xx"),
        pytest.param(forever(b"X-Y: z\r\n", first=b"HTTP/1.1 200 OK\r\n"), id="headers"),
        pytest.param(forever(b"\r\n"), id="empty-lines"),
    ],
)
def test_a_flood_before_the_status_ends_at_the_limit(conduct: Conduct) -> None:
    with serving(conduct) as server:
        answer = deliver(server.url)
    assert answer.error_code in {Failure.RESPONSE_TOO_LARGE, Failure.PROTOCOL_ERROR}
    assert answer.num_bytes <= MAX_RESPONSE_BYTES
    assert answer.latency < 5 * SECONDS


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", id="bare line feeds"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nX-Long: a\r\n  b\r\nContent-Length: 2\r\n\r\nok", id="folded header"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            id="chunks and a length",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", id="twice one length"
        ),
        pytest.param(b"HTTP/1.1 100 Continue\r\nConnection: close\r\n\r\n" + OK, id="100 that closes"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\nok", id="1.0"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", id="until the end"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 12_000 + b"\r\n\r\n", id="long header"),
    ],
)
def test_what_is_not_quite_as_it_should_be_is_understood(raw: bytes) -> None:
    with serving(answering(raw)) as server:
        answer = deliver(server.url)
    assert (answer.status, answer.error_code) == (200, None)


@pytest.mark.parametrize(("first", "second"), [(410, 200), (500, 200), (200, 408)])
def test_of_two_answers_the_first_counts(first: int, second: int) -> None:
    def raw(status: int, *lines: str) -> bytes:
        return "\r\n".join([f"HTTP/1.1 {status} X", *lines, "Content-Length: 0", "", ""]).encode()

    with serving(answering(raw(first), raw(second, "Retry-After: 60"))) as server:
        answer = deliver(server.url)
    assert (answer.status, answer.retry_after) == (first, None)


@pytest.mark.parametrize("asked", ["01 Jan 99999999999 00:00:00 GMT", "-1", "1e9", "soon"])
def test_a_retry_after_without_sense_is_none(asked: str) -> None:
    raw = f"HTTP/1.1 503 X\r\nRetry-After: {asked}\r\nContent-Length: 0\r\n\r\n".encode("latin-1")
    with serving(answering(raw)) as server:
        answer = deliver(server.url)
    assert (answer.status, answer.retry_after) == (503, None)


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_exchange_that_is_given_up_leaves_no_connection(
    scheme: str, certificate: Path, server_tls: ssl.SSLContext
) -> None:
    """Seen by the other end, which goes on sending, and by this process's open files."""
    closed: queue.SimpleQueue[None] = queue.SimpleQueue()

    def until_closed(connected: socket.socket) -> None:
        with suppress(OSError):
            forever(b"X-Drip: 1\r\n", first=b"HTTP/1.1 200 OK\r\n", pause=0.02)(connected)
        closed.put(None)

    trusting = ssl.create_default_context(cafile=str(certificate))
    num_open: list[int] = []

    async def give_up_many(url: str) -> None:
        for _ in range(20):
            answer = await transport.post(
                url,
                BODY,
                {},
                allowed_hosts=["hook.test"],
                deadline=timedelta(seconds=0.1),
                resolve=lambda *_: ["127.0.0.1"],
                tls=trusting,
            )
            assert answer.error_code == Failure.TIMED_OUT
            await asyncio.to_thread(closed.get, timeout=PATIENCE)
            num_open.append(num_open_files())

    with serving(until_closed, tls=server_tls if scheme == "https" else None) as server:
        awaited(give_up_many)(f"{scheme}://hook.test:{server.port}/")
    assert num_open[-1] - num_open[0] < 5  # the server may still be about to close its last


def test_a_handshake_without_end_is_cut_at_64_kb() -> None:
    num_sent = 0

    def greet_forever(connected: socket.socket) -> None:
        nonlocal num_sent
        connected.recv(65536)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        while True:  # HelloRequest records, which OpenSSL passes over
            num_sent += connected.send(b"\x16\x03\x03\x00\x04\x00\x00\x00\x00" * 100)

    with serving(greet_forever, reads=False) as server:
        answer = deliver(f"https://hook.test:{server.port}/")
    assert answer.error_code == Failure.RESPONSE_TOO_LARGE
    assert num_sent <= 3 * MAX_RECEIVED_BYTES


@pytest.mark.parametrize(
    ("conduct", "failure"),
    [
        (resetting, Failure.CONNECTION_LOST),
        (half_closing, Failure.PROTOCOL_ERROR),
        (answering(), Failure.PROTOCOL_ERROR),
        (answering(b"220 mail.example ESMTP\r\n"), Failure.PROTOCOL_ERROR),
        (answering(b"HTTP/1.1 20"), Failure.PROTOCOL_ERROR),
        (answering(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"), Failure.PROTOCOL_ERROR),
        (answering(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"), Failure.PROTOCOL_ERROR),
    ],
)
def test_a_broken_answer_is_a_value_and_no_exception(conduct: Conduct, failure: Failure) -> None:
    with serving(conduct) as server:
        answer = deliver(server.url)
    assert (answer.status, answer.error_code) == (None, failure)


def test_a_server_that_answers_before_it_has_read_everything_is_heard() -> None:
    with serving(answering(OK)) as server:
        answer = post(
            server.url,
            BODY + b"x" * 20_000_000,
            {},
            allowed_hosts=["hook.test"],
            deadline=5 * SECONDS,
            resolve=lambda *_: ["127.0.0.1"],
        )
    assert answer.status == 200 or answer.error_code == Failure.CONNECTION_LOST


def test_a_closed_port_is_a_failed_connection() -> None:
    with serving(answering(OK)) as server:
        url = server.url
    assert deliver(url).error_code == Failure.CONNECT_FAILED


def test_the_next_address_is_tried_when_one_is_dead() -> None:
    with serving(answering(OK)) as server:
        answer = post(
            server.url,
            BODY,
            {},
            allowed_hosts=["hook.test"],
            deadline=5 * SECONDS,
            resolve=lambda *_: ["127.0.0.2", "127.0.0.1"],
        )
    assert answer.status == 200


def stranger(port: int) -> ParsedUrl:
    """A URL that nobody allowed, but on the port where a listener counts connections."""
    return ParsedUrl(scheme="http", host="hook.test", port=port, target="/", is_allowed_host=False)


def test_a_name_is_resolved_once_so_that_it_cannot_change_its_mind() -> None:
    answers = iter([["127.0.0.1"], ["127.0.0.2"]])
    with serving(answering(OK)) as server:
        url = replace(stranger(server.port), is_allowed_host=True)
        assert exchange(url, BODY, {}, deadline=5 * SECONDS, resolve=lambda *_: next(answers)).status == 200
    assert next(answers) == ["127.0.0.2"]


def test_a_name_server_that_does_not_answer_is_left_at_the_deadline() -> None:
    release = threading.Event()

    def never(*_: object) -> list[str]:
        release.wait(10)
        return []

    answer = exchange(stranger(443), BODY, {}, deadline=0.3 * SECONDS, resolve=never)
    release.set()
    assert answer.error_code == Failure.TIMED_OUT
    assert answer.latency < 1.5 * SECONDS


@pytest.mark.parametrize("error", [socket.gaierror("no such name"), UnicodeError("label too long"), None])
def test_a_name_without_addresses_is_a_value(error: Exception | None) -> None:
    def resolve(*_: object) -> list[str]:
        if error:
            raise error
        return []

    answer = exchange(stranger(443), BODY, {}, deadline=SECONDS, resolve=resolve)
    assert answer.error_code == Failure.NAME_NOT_RESOLVED


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server_tls(certificate: Path) -> ssl.SSLContext:
    return serving_as(certificate)


def test_tls_verifies_the_name_of_the_url_and_sends_it_to_the_vetted_address(
    certificate: Path, server_tls: ssl.SSLContext
) -> None:
    asked_for: list[str | None] = []
    server_tls.sni_callback = lambda _socket, name, _context: asked_for.append(name)
    with serving(answering(OK), tls=server_tls) as server:
        url = f"https://hook.test:{server.port}/"
        answer = deliver(url, tls=ssl.create_default_context(cafile=str(certificate)))
    assert (answer.status, answer.error_code) == (200, None)
    assert asked_for == ["hook.test"]
    assert f"Host: hook.test:{server.port}\r\n".encode() in server.requests[0]


def test_a_certificate_of_another_name_is_a_failure_of_tls(
    certificate: Path, server_tls: ssl.SSLContext
) -> None:
    with serving(answering(OK), tls=server_tls) as server:
        answer = deliver(
            f"https://127.0.0.1:{server.port}/", tls=ssl.create_default_context(cafile=str(certificate))
        )
    assert answer.error_code == Failure.TLS_FAILED
    assert server.requests == []


def test_a_certificate_that_nobody_vouches_for_is_a_failure_of_tls(server_tls: ssl.SSLContext) -> None:
    with serving(answering(OK), tls=server_tls) as server:
        assert deliver(f"https://hook.test:{server.port}/").error_code == Failure.TLS_FAILED


def test_plain_http_where_tls_is_expected_is_a_failure_of_tls() -> None:
    with serving(answering(OK), reads=False) as server:
        assert deliver(f"https://hook.test:{server.port}/").error_code == Failure.TLS_FAILED


def test_a_tls_handshake_that_drips_ends_at_the_deadline() -> None:
    def drip(connected: socket.socket) -> None:
        connected.recv(65536)
        # The head of a handshake record of 16 kB, and then its bytes one by one.
        forever(b"\x02", first=b"\x16\x03\x03\x40\x00", pause=0.02)(connected)

    with serving(drip, reads=False) as server:
        answer = deliver(f"https://hook.test:{server.port}/", deadline=0.5 * SECONDS)
    assert answer.error_code == Failure.TIMED_OUT
    assert answer.latency < 1.5 * SECONDS
