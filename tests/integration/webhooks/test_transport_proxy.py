"""Webhook exchanges through a proxy: real sockets, honest and hostile proxies, receivers and addresses."""

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError
from sqlalchemy import update
from sqlalchemy.orm import Session, sessionmaker

from cli.stack.ports import free_port
from hostile.proxies import ESTABLISHED, authority_of, forwarding
from hostile.servers import (
    Conduct,
    Server,
    answering,
    forever,
    make_certificate,
    resetting,
    serving,
    serving_as,
    silent,
)
from hostile.ssrf_corpus import IPV6, LOOPBACK, METADATA, PRIVATE, REBINDING
from jobs.database import transaction
from jobs.models import WebhookBreaker
from jobs.settings import WebhookSettings
from jobs.webhooks import ParsedUrl
from support import PATIENCE, eventually
from webhook_support import (
    WEBHOOKS,
    Receiver,
    add_endpoint,
    deliver_all,
    dispatch_states,
    endpoint_now,
    exchange,
    finish,
    make_due,
    post,
    status,
    tries,
)
from worker.webhooks.connect import Failure
from worker.webhooks.exchange import ExchangeResult
from worker.webhooks.proxy import MAX_ANSWER_BYTES, Proxy, proxy_of

BODY = b'{"id":"job_1"}'
SECONDS = timedelta(seconds=1)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Resolve = Callable[[str, int], list[str]]


def loopback(host: str, _: int) -> list[str]:
    return ["127.0.0.1"] if host.endswith(".test") else []


def through(
    proxy: Proxy,
    url: str,
    *,
    deadline: timedelta = timedelta(seconds=PATIENCE),
    resolve: Resolve = loopback,
    tls: ssl.SSLContext | None = None,
) -> ExchangeResult:
    """An exchange through the proxy in which hook.test and loopback are allowed hosts."""
    return post(
        url,
        BODY,
        {"webhook-id": "evt_1"},
        allowed_hosts=["hook.test", "127.0.0.1"],
        deadline=deadline,
        proxy=proxy,
        resolve=resolve,
        tls=tls,
    )


@contextmanager
def proxying(conduct: Conduct, *, reads: bool = True) -> Iterator[tuple[Server, Proxy]]:
    with serving(conduct, reads=reads) as server:
        yield server, Proxy("127.0.0.1", server.port)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("certificate"))


def stranger(host: str) -> ParsedUrl:
    return ParsedUrl(scheme="https", host=host, port=443, target="/", is_allowed_host=False)


def test_the_proxy_gets_the_checked_address_and_the_receiver_the_request() -> None:
    asked: list[bytes] = []
    with serving(answering(OK)) as receiver:
        routes = {f"127.0.0.1:{receiver.port}": receiver.port}
        with proxying(forwarding(routes, asked), reads=False) as (_, proxy):
            answer = through(replace(proxy, authorization="Basic dTpw"), receiver.url)
    assert (answer.status, answer.num_bytes) == (200, len(OK))
    head, _, rest = asked[0].partition(b"\r\n\r\n")
    assert rest == b"", "nothing of the event"
    lines = head.decode().split("\r\n")
    authority = f"127.0.0.1:{receiver.port}"
    assert lines == [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", "Proxy-Authorization: Basic dTpw"]
    (request,) = receiver.requests
    assert request.startswith(b"POST /hook?x=1 HTTP/1.1\r\nHost: hook.test:")
    assert request.endswith(BODY)
    assert b"roxy" not in request, "its password is not for receivers"


def test_a_proxy_that_resolves_gets_the_name_which_is_not_looked_up_here() -> None:
    asked: list[bytes] = []

    def never(host: str, _: int) -> list[str]:
        raise AssertionError(host)

    with serving(answering(OK)) as receiver:
        name = f"hook.test:{receiver.port}"
        with proxying(forwarding({name: receiver.port}, asked), reads=False) as (_, proxy):
            answer = through(replace(proxy, resolves=True), receiver.url, resolve=never)
    assert (answer.status, authority_of(asked[0])) == (200, name)


@pytest.mark.parametrize("resolves", [False, True])
def test_tls_is_the_receiver_s_from_end_to_end(certificate: Path, resolves: bool) -> None:  # noqa: FBT001  # a parameter
    tls = ssl.create_default_context(cafile=str(certificate))
    asked: list[bytes] = []
    with serving(answering(OK), tls=serving_as(certificate)) as receiver:
        routes = {f"{host}:{receiver.port}": receiver.port for host in ("hook.test", "127.0.0.1")}
        with proxying(forwarding(routes, asked), reads=False) as (_, proxy):
            url = f"https://hook.test:{receiver.port}/"
            assert through(replace(proxy, resolves=resolves), url, tls=tls).status == 200
            assert through(proxy, url).error_code == Failure.TLS_FAILED, "nobody vouches for it"
    assert len(receiver.requests) == 1
    assert len(asked) == 2


def test_a_proxy_cannot_answer_in_place_of_a_receiver_of_https(certificate: Path, tmp_path: Path) -> None:
    """It says that it connected, and shows a certificate of its own."""
    tls = ssl.create_default_context(cafile=str(certificate))
    own = serving_as(make_certificate(tmp_path))

    def pretending(connected: object) -> None:
        connected.sendall(ESTABLISHED)  # type: ignore[attr-defined]  # a socket
        with own.wrap_socket(connected, server_side=True) as opened:  # type: ignore[arg-type]  # the same
            opened.sendall(OK)

    with proxying(pretending) as (_, proxy):
        answer = through(proxy, "https://hook.test:8443/", tls=tls)
    assert (answer.status, answer.error_code) == (None, Failure.TLS_FAILED)


def test_the_next_address_is_asked_for_if_the_proxy_refuses_the_first() -> None:
    asked: list[bytes] = []
    with serving(answering(OK)) as receiver:
        routes = {f"127.0.0.1:{receiver.port}": receiver.port}
        with proxying(forwarding(routes, asked), reads=False) as (_, proxy):
            answer = through(proxy, receiver.url, resolve=lambda *_: ["2606:4700::1111", "127.0.0.1"])
    assert answer.status == 200
    assert [authority_of(each) for each in asked] == [
        f"[2606:4700::1111]:{receiver.port}",
        f"127.0.0.1:{receiver.port}",
    ]


def test_what_a_receiver_sends_before_it_is_asked_counts_as_its_answer() -> None:
    """In one packet with the proxy's answer."""
    with proxying(answering(ESTABLISHED, OK)) as (_, proxy):
        answer = through(proxy, "http://hook.test:8080/")
    assert (answer.status, answer.num_bytes) == (200, len(OK))


@pytest.mark.parametrize("resolves", [False, True])
def test_no_private_host_is_asked_of_the_proxy(resolves: bool) -> None:  # noqa: FBT001  # a parameter
    hosts = (*LOOPBACK, *PRIVATE, *METADATA, *IPV6)
    with proxying(answering(ESTABLISHED, OK)) as (server, direct):
        proxy = replace(direct, resolves=resolves)
        for host in hosts:
            answer = post(f"https://{host}/", BODY, {}, allowed_hosts=(), deadline=5 * SECONDS, proxy=proxy)
            assert answer.error_code in {
                Failure.URL_REFUSED,
                Failure.ADDRESS_REFUSED,
                Failure.NAME_NOT_RESOLVED,
            }, host
        assert server.num_connections == 0


def test_no_answer_of_a_stranger_s_name_server_reaches_the_proxy() -> None:
    with proxying(answering(ESTABLISHED, OK)) as (server, proxy):
        for name, addresses in REBINDING:
            answer = exchange(
                stranger(name),
                BODY,
                {},
                deadline=5 * SECONDS,
                proxy=proxy,
                resolve=lambda *_, found=addresses: found,
            )
            assert answer.error_code == (
                Failure.ADDRESS_REFUSED if addresses else Failure.NAME_NOT_RESOLVED
            ), name
        assert server.num_connections == 0


@pytest.mark.parametrize(
    ("conduct", "failure"),
    [
        pytest.param(
            answering(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n"), Failure.PROXY_AUTH_FAILED, id="407"
        ),
        *(
            pytest.param(
                answering(f"HTTP/1.1 {code} No\r\nContent-Length: 0\r\n\r\n".encode()),
                Failure.PROXY_REFUSED,
                id=str(code),
            )
            for code in (302, 400, 403, 500, 502, 503, 504)
        ),
        pytest.param(
            forever(b"X-A: b\r\n", first=b"HTTP/1.1 200 OK\r\n"), Failure.PROXY_PROTOCOL_ERROR, id="headers"
        ),
        pytest.param(
            forever(b"x" * 4096, first=b"HTTP/1.1 200 "), Failure.PROXY_PROTOCOL_ERROR, id="one-line"
        ),
        pytest.param(forever(b"HTTP/1.1 103 A\r\n\r\n"), Failure.PROXY_PROTOCOL_ERROR, id="1xx"),
        pytest.param(answering(b"HTTP/1.1 101 A\r\n\r\n"), Failure.PROXY_PROTOCOL_ERROR, id="101"),
        pytest.param(answering(b"SSH-2.0-x\r\n\r\n"), Failure.PROXY_PROTOCOL_ERROR, id="no-http"),
        pytest.param(answering(b"HTTP/1.1 20"), Failure.PROXY_PROTOCOL_ERROR, id="broken-off"),
        pytest.param(answering(), Failure.PROXY_PROTOCOL_ERROR, id="closed"),
        pytest.param(resetting, Failure.PROXY_PROTOCOL_ERROR, id="reset"),
    ],
)
def test_an_error_of_the_proxy_is_none_of_the_receiver(conduct: Conduct, failure: Failure) -> None:
    with proxying(conduct) as (server, proxy):
        answer = through(proxy, "http://hook.test:8080/")
    assert (answer.status, answer.error_code, answer.num_bytes) == (None, failure, 0)
    assert server.num_connections == 1


def test_a_proxy_puts_no_more_onto_this_machine_than_its_answer_may_have() -> None:
    """Counted by the sender, whose own kernel holds little."""
    num_sent = 0

    def flood(connected: object) -> None:
        nonlocal num_sent
        connected.sendall(b"HTTP/1.1 200 OK\r\n")  # type: ignore[attr-defined]  # a socket
        while True:
            num_sent += connected.send(b"X-A: bbbbbbbbbbbb\r\n" * 50)  # type: ignore[attr-defined]  # the same

    with proxying(flood) as (_, proxy):
        answer = through(proxy, "http://hook.test:8080/")
    assert answer.error_code == Failure.PROXY_PROTOCOL_ERROR
    assert num_sent >= MAX_ANSWER_BYTES - 1000


@pytest.mark.parametrize(
    "conduct",
    [
        pytest.param(silent, id="silence"),
        pytest.param(forever(b"X-Drip: 1\r\n", first=b"HTTP/1.1 200 OK\r\n", pause=0.02), id="headers"),
        pytest.param(forever(b"HTTP/1.1 103 A\r\n\r\n", pause=0.02), id="1xx"),
    ],
)
def test_a_proxy_that_never_gets_to_its_status_is_left_at_the_deadline(conduct: Conduct) -> None:
    with proxying(conduct) as (_, proxy):
        answer = through(proxy, "http://127.0.0.1:8080/", deadline=0.5 * SECONDS)
    assert (answer.status, answer.error_code) == (None, Failure.PROXY_TIMED_OUT)


def test_a_proxy_that_never_answers_is_asked_for_each_address_within_one_deadline() -> None:
    with proxying(silent) as (server, proxy):
        answer = through(
            proxy,
            "http://hook.test:8080/",
            deadline=3 * SECONDS,
            resolve=lambda *_: ["127.0.0.1", "127.0.0.2"],
        )
        assert eventually(lambda: server.num_connections == 2)
    assert (answer.status, answer.error_code) == (None, Failure.PROXY_TIMED_OUT)
    assert [authority_of(each) for each in server.requests] == ["127.0.0.1:8080", "127.0.0.2:8080"]


def test_a_receiver_that_hangs_behind_the_proxy_is_the_receiver_s_error() -> None:
    asked: list[bytes] = []
    with serving(silent) as receiver:
        routes = {f"127.0.0.1:{receiver.port}": receiver.port}
        with proxying(forwarding(routes, asked), reads=False) as (_, proxy):
            answer = through(proxy, f"http://127.0.0.1:{receiver.port}/", deadline=2 * SECONDS)
    assert (answer.status, answer.error_code) == (None, Failure.TIMED_OUT)


def test_a_receiver_that_breaks_off_behind_the_proxy_is_the_receiver_s_error() -> None:
    asked: list[bytes] = []
    with serving(resetting) as receiver:
        routes = {f"127.0.0.1:{receiver.port}": receiver.port}
        with proxying(forwarding(routes, asked), reads=False) as (_, proxy):
            answer = through(proxy, receiver.url)
    # What a proxy makes of a reset is its own affair: it may just close.
    assert answer.error_code in {Failure.CONNECTION_LOST, Failure.PROTOCOL_ERROR}


def test_a_proxy_that_is_not_there_is_named() -> None:
    nowhere = Proxy("127.0.0.1", free_port())
    assert through(nowhere, "http://hook.test:8080/").error_code == Failure.PROXY_UNAVAILABLE
    nameless = Proxy("proxy.invalid", 3128)
    assert through(nameless, "http://hook.test:8080/").error_code == Failure.PROXY_UNAVAILABLE


def test_the_settings_make_the_proxy() -> None:
    assert proxy_of(WebhookSettings()) is None
    given = WebhookSettings(
        proxy_url="http://[::1]:3128/", proxy_credentials=SecretStr("u:p:ü§"), proxy_resolves=True
    )
    proxy = proxy_of(given)
    assert proxy == Proxy("::1", 3128, "Basic dTpwOsO8wqc=", resolves=True)
    assert "dTpw" not in repr(proxy)
    assert "§" not in repr(given)


@pytest.mark.parametrize(
    "given",
    [
        {"proxy_url": "http://proxy.example"},
        {"proxy_url": "https://proxy.example:3128"},
        {"proxy_url": "http://user:password@proxy.example:3128"},
        {"proxy_url": "http://proxy.example:0"},
        {"proxy_url": "http://proxy.example:65536"},
        {"proxy_url": "http://proxy.example:3128/path"},
        {"proxy_url": "socks5://proxy.example:3128"},
        {"proxy_url": ""},
        {"proxy_credentials": "user:password"},
        {"proxy_resolves": True},
        {"proxy_url": "http://proxy.example:3128", "proxy_credentials": "user"},
        {"proxy_url": "http://proxy.example:3128", "proxy_credentials": "user:pass\r\nX-A: b"},
    ],
    ids=str,
)
def test_settings_that_name_no_proxy_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="proxy_"):
        WebhookSettings.model_validate(given)


def with_proxy(port: int) -> WebhookSettings:
    return WEBHOOKS.model_copy(update={"proxy_url": f"http://127.0.0.1:{port}"})


def fail_for_days(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        since = WebhookBreaker.failing_since - timedelta(days=5)
        session.execute(update(WebhookBreaker).values(failing_since=since))


def test_a_proxy_that_is_away_for_days_loses_no_event_and_disables_no_endpoint(
    sessions: sessionmaker[Session], receiver: Receiver
) -> None:
    endpoint, _ = add_endpoint(sessions, receiver.url())
    away = with_proxy(free_port())
    for _ in range(6):
        finish(sessions)
    deliver_all(sessions, away)
    fail_for_days(sessions)
    make_due(sessions)
    deliver_all(sessions, away)
    assert {each.outcome for each in tries(sessions)} == {"proxy_unavailable"}
    assert endpoint_now(sessions, endpoint).disabled_reason is None
    assert set(dispatch_states(sessions)) == {"pending"}
    asked: list[bytes] = []
    routes = {f"127.0.0.1:{receiver.port}": receiver.port}
    with serving(forwarding(routes, asked), reads=False) as server:
        make_due(sessions)
        deliver_all(sessions, with_proxy(server.port))
    assert set(dispatch_states(sessions)) == {"delivered"}
    assert len(asked) == len(receiver.seen) == 6


def test_days_without_a_proxy_do_not_count_against_a_receiver_that_fails_then(
    sessions: sessionmaker[Session], receiver: Receiver
) -> None:
    endpoint, _ = add_endpoint(sessions, receiver.url("/bad"))
    receiver.answers["/bad"] = status(500)
    for _ in range(6):
        finish(sessions)
    deliver_all(sessions, with_proxy(free_port()))
    fail_for_days(sessions)
    make_due(sessions)
    deliver_all(sessions, with_proxy(free_port()))
    with serving(forwarding({f"127.0.0.1:{receiver.port}": receiver.port}, []), reads=False) as server:
        make_due(sessions)
        deliver_all(sessions, with_proxy(server.port))
    assert receiver.seen
    assert endpoint_now(sessions, endpoint).disabled_reason is None


def test_a_receiver_that_fails_behind_the_proxy_for_days_is_disabled(
    sessions: sessionmaker[Session], receiver: Receiver
) -> None:
    endpoint, _ = add_endpoint(sessions, receiver.url("/bad"))
    receiver.answers["/bad"] = status(500)
    for _ in range(6):
        finish(sessions)
    routes = {f"127.0.0.1:{receiver.port}": receiver.port}
    with serving(forwarding(routes, []), reads=False) as server:
        deliver_all(sessions, with_proxy(server.port))
        fail_for_days(sessions)
        make_due(sessions)
        deliver_all(sessions, with_proxy(server.port))
    assert endpoint_now(sessions, endpoint).disabled_reason == "failing"
