"""No webhook leads to a private address: counted by a listener, not by what our own code says it did."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from hostile.ssrf_corpus import IPV6, LOOPBACK, METADATA, PRIVATE, REBINDING, SHAPES, urls
from jobs.webhooks import ParsedUrl, WebhookUrlError, check_destination, check_url
from support import eventually
from webhook_support import connections, exchange, post
from worker.webhooks.connect import Failure
from worker.webhooks.exchange import ExchangeResult

SECOND = timedelta(seconds=1)


@dataclass
class Canary:
    """Listens on every address of this machine's loopback, on one port, and counts who connects."""

    port: int
    connections: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def canary() -> Iterator[Canary]:
    with ExitStack() as stack:
        first = stack.enter_context(socket.create_server(("0.0.0.0", 0), backlog=64))  # noqa: S104
        found = Canary(first.getsockname()[1])
        listeners = [first]
        if socket.has_dualstack_ipv6():
            six = socket.create_server(("::1", found.port), family=socket.AF_INET6)
            listeners.append(stack.enter_context(six))
        for listener in listeners:
            thread = threading.Thread(target=_count, args=(listener, found), daemon=True)
            thread.start()
        yield found
        for listener in listeners:
            with socket.socket(listener.family) as last:  # wakes accept; the count no longer matters
                last.settimeout(1)
                last.connect(("::1" if listener.family == socket.AF_INET6 else "127.0.0.1", found.port))
            listener.shutdown(socket.SHUT_RDWR)


def _count(listener: socket.socket, canary: Canary) -> None:
    for connected in connections(listener):
        canary.connections.append(str(connected.getsockname()[0]))


def reachable(canary: Canary) -> bool:
    """Whether the canary notices, which every test here relies on."""
    before = len(canary.connections)
    with socket.create_connection(("127.0.0.1", canary.port), timeout=5):
        pass
    return eventually(lambda: len(canary.connections) > before)


@contextmanager
def nobody_connects(canary: Canary) -> Iterator[None]:
    assert reachable(canary)
    before = list(canary.connections)
    yield
    assert reachable(canary), "whoever connected before this has been counted"
    assert canary.connections[: len(before)] == before
    assert len(canary.connections) == len(before) + 1, "somebody was there in between"


def test_the_corpus_is_large_and_has_every_kind() -> None:
    assert len(set(urls(1)) | {name for name, _ in REBINDING}) >= 120
    assert all((LOOPBACK, PRIVATE, METADATA, IPV6, SHAPES))


def test_every_url_of_the_corpus_is_refused_when_it_is_given() -> None:
    accepted = []
    for url in urls(8443):
        try:
            check_destination(url, allowed_hosts=())
        except WebhookUrlError:
            continue
        accepted.append(url)
    assert accepted == []


def test_no_url_of_the_corpus_leads_to_a_connection(canary: Canary) -> None:
    with nobody_connects(canary):
        for url in urls(canary.port):
            answer = post(url, b"{}", {}, allowed_hosts=(), deadline=5 * SECOND)
            assert answer.status is None, url
            assert answer.error_code in {
                Failure.URL_REFUSED,
                Failure.ADDRESS_REFUSED,
                Failure.NAME_NOT_RESOLVED,
            }, url


def test_no_host_of_the_corpus_is_reached_behind_the_rules_for_urls(canary: Canary) -> None:
    """As if a rule had let it through: what the system makes of the host decides alone."""
    with nobody_connects(canary):
        for host in (*LOOPBACK, *PRIVATE, *METADATA, *(each.strip("[]") for each in IPV6)):
            answer = exchange(stranger(host, canary.port), b"{}", {}, deadline=5 * SECOND)
            assert answer.error_code in {Failure.ADDRESS_REFUSED, Failure.NAME_NOT_RESOLVED}, host


@pytest.mark.parametrize(("name", "addresses"), REBINDING)
def test_no_answer_of_a_stranger_s_name_server_leads_to_a_connection(
    canary: Canary, name: str, addresses: list[str]
) -> None:
    with nobody_connects(canary):
        answer = exchange(
            stranger(name, canary.port), b"{}", {}, deadline=2 * SECOND, resolve=lambda *_: addresses
        )
    assert answer.error_code == (Failure.ADDRESS_REFUSED if addresses else Failure.NAME_NOT_RESOLVED)


def test_a_name_that_changes_its_mind_between_looks_is_looked_up_once_for_each_delivery(
    canary: Canary,
) -> None:
    """Public at registration and for the check, private for the connection: there is only one look."""
    asked = 0

    def flipping(*_: object) -> list[str]:
        nonlocal asked
        asked += 1
        return ["127.0.0.1"] if asked % 2 == 0 else ["192.0.2.1" if asked % 4 == 1 else "::1"]

    with nobody_connects(canary):
        for number in range(1, 9):
            url = stranger("flip.example", canary.port)
            answer = exchange(url, b"{}", {}, deadline=2 * SECOND, resolve=flipping)
            assert answer.error_code == Failure.ADDRESS_REFUSED
            assert asked == number


def test_redirects_to_private_addresses_lead_nowhere(canary: Canary) -> None:
    for code in (301, 302, 303, 307, 308):
        location = f"Location: http://127.0.0.1:{canary.port}/\r\n"
        raw = f"HTTP/1.1 {code} Go\r\n{location}Content-Length: 0\r\n\r\n".encode()
        with nobody_connects(canary), answering(raw) as port:
            assert allowed(port).status == code


def test_environment_proxies_play_no_part(canary: Canary, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{canary.port}")
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with nobody_connects(canary), answering(raw) as port:
        assert allowed(port).status == 200


def test_the_allow_list_permits_exactly_the_hosts_it_names(canary: Canary) -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with answering(raw) as port:
        assert allowed(port).status == 200
        for other in ("127.0.0.2", "127.1", "2130706433", "localhost", "[::1]", "127.0.0.1.nip.io"):
            answer = post(f"http://{other}:{port}/", b"{}", {}, allowed_hosts=["127.0.0.1"], deadline=SECOND)
            assert answer.error_code == Failure.URL_REFUSED, other
    with nobody_connects(canary):
        check_url(f"http://127.0.0.1:{canary.port}/", allowed_hosts=["127.0.0.1"])


def stranger(host: str, port: int) -> ParsedUrl:
    return ParsedUrl(scheme="http", host=host, port=port, target="/", is_allowed_host=False)


def allowed(port: int, *, scheme: str = "http", tls: ssl.SSLContext | None = None) -> ExchangeResult:
    url = f"{scheme}://127.0.0.1:{port}/"
    return post(url, b"{}", {}, allowed_hosts=["127.0.0.1"], deadline=5 * SECOND, tls=tls)


@contextmanager
def answering(raw: bytes) -> Iterator[int]:
    """The port of a server that says this to whoever asks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for connected in connections(listener):
                connected.recv(65536)
                connected.sendall(raw)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)
