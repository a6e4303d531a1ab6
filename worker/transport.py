"""One HTTP exchange with a stranger's server that leads to no private address and ends in time."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cache
from typing import Final, cast

import httpcore2

from jobs.addresses import is_allowed_address
from jobs.webhooks import ParsedUrl, WebhookUrlError, check_url

MAX_RESPONSE_BYTES: Final = 16 * 1024  # status, headers and body together; nobody reads the body
MAX_ADDRESSES: Final = 8

# Names the addresses of a host, in the order in which to try them; OSError where there are none.
Resolve = Callable[[str, int], Iterable[str]]


class Failure(StrEnum):
    """Why an exchange brought no status."""

    URL_REFUSED = "url_refused"
    NAME_NOT_RESOLVED = "name_not_resolved"
    ADDRESS_REFUSED = "address_refused"
    CONNECT_FAILED = "connect_failed"
    TLS_FAILED = "tls_failed"
    TIMED_OUT = "timed_out"
    CONNECTION_LOST = "connection_lost"
    RESPONSE_TOO_LARGE = "response_too_large"
    PROTOCOL_ERROR = "protocol_error"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an exchange: exactly one of `status` and `error_code` is set.

    Attributes:
        status: the final HTTP status; the body after it counts for nothing, even where it breaks off.
        error_code: why there is none.
        num_bytes: received, at most `MAX_RESPONSE_BYTES`.
        latency: from the call to its end.
    """

    status: int | None
    error_code: Failure | None
    num_bytes: int
    latency: timedelta


def resolve_host(host: str, port: int) -> list[str]:
    """The system's addresses of a host, each once; may block for long."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    allowed_hosts: Collection[str],
    deadline: timedelta,
    resolve: Resolve = resolve_host,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """What came of POSTing the body to a URL, checked again here: the allowed hosts may have changed.

    Args:
        url: where to.
        body: sent as it is.
        headers: as for `exchange`.
        allowed_hosts: hosts that may be private, on plain http and on any port.
        deadline: as for `exchange`.
        resolve: how names become addresses.
        tls: None means the system's certificate authorities.
    """
    try:
        parsed = check_url(url, allowed_hosts=allowed_hosts)
    except WebhookUrlError:
        return Answer(status=None, error_code=Failure.URL_REFUSED, num_bytes=0, latency=timedelta(0))
    return exchange(parsed, body, headers, deadline=deadline, resolve=resolve, tls=tls)


def exchange(
    url: ParsedUrl,
    body: bytes,
    headers: Mapping[str, str],
    *,
    deadline: timedelta,
    resolve: Resolve = resolve_host,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """What came of POSTing the body, at the latest after `deadline`; failures of the network are values.

    The name is resolved once, every address of it must be public (or its host allowed), and the connection
    goes to one of these very addresses. A redirect is an answer; proxies play no part.

    Args:
        url: where to.
        body: sent as it is.
        headers: besides Host, Content-Length, Accept-Encoding and Connection, which are set here.
        deadline: wall-clock time over everything, from resolving the name to reading the answer.
        resolve: how names become addresses.
        tls: None means the system's certificate authorities.
    """
    started = time.monotonic()
    budget = _Budget(ends_at=started + deadline.total_seconds())
    status: int | None = None
    failure: Failure | None = None
    try:
        status = _send(url, body, headers, network=_Network(url, budget, resolve), tls=tls or _system_tls())
    except httpcore2.ProtocolError:
        failure = Failure.PROTOCOL_ERROR
    except _ExchangeError as error:
        failure = error.failure
    latency = timedelta(seconds=time.monotonic() - started)
    return Answer(status=status, error_code=failure, num_bytes=budget.num_bytes, latency=latency)


def _send(
    url: ParsedUrl, body: bytes, headers: Mapping[str, str], *, network: "_Network", tls: ssl.SSLContext
) -> int:
    """The status that the server answered with."""
    request = httpcore2.Request(
        "POST",
        httpcore2.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target),
        headers={
            **headers,  # type: ignore[dict-item] # str fits str | bytes, but Mapping's keys are invariant
            "Host": url.authority,
            "Content-Length": str(len(body)),
            "Accept-Encoding": "identity",
            "Connection": "close",
        },
        content=body,
    )
    try:
        connection = httpcore2.HTTPConnection(request.url.origin, ssl_context=tls, network_backend=network)
        response = connection.handle_request(request)
        # Read politely: closing on unread bytes would reset the connection. What they say does not matter.
        with suppress(_ExchangeError, httpcore2.ProtocolError):
            for _ in response.iter_stream():
                pass
        return response.status
    finally:
        network.close()


@cache
def _system_tls() -> ssl.SSLContext:
    return httpcore2.default_ssl_context()


class _ExchangeError(Exception):
    """The exchange ends without a status."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


@dataclass(slots=True)
class _Budget:
    """What one exchange may still use."""

    ends_at: float  # seconds of the monotonic clock
    num_bytes: int = 0

    def seconds_left(self) -> float:
        left = self.ends_at - time.monotonic()
        if left <= 0:
            raise _ExchangeError(Failure.TIMED_OUT)
        return left

    def bytes_left(self) -> int:
        left = MAX_RESPONSE_BYTES - self.num_bytes
        if left <= 0:
            raise _ExchangeError(Failure.RESPONSE_TOO_LARGE)
        return left


class _Network(httpcore2.NetworkBackend):
    """Connects to addresses that were looked at, and keeps every operation within the budget."""

    def __init__(self, url: ParsedUrl, budget: _Budget, resolve: Resolve) -> None:
        self._url = url
        self._budget = budget
        self._resolve = resolve
        self._stream: _Stream | None = None

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 the budget decides
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,  # noqa: ARG002
    ) -> httpcore2.NetworkStream:
        addresses = self._vetted_addresses(host, port)
        for number, address in enumerate(addresses):
            # A share of the time for each, so that an address that swallows packets leaves some for the next.
            share = self._budget.seconds_left() / (len(addresses) - number)
            try:
                connected = socket.create_connection((address, port), timeout=share)
            except OSError:
                continue
            self._stream = _Stream(connected, self._budget)
            if not self._may_be_reached(connected.getpeername()[0]):
                raise _ExchangeError(Failure.ADDRESS_REFUSED)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._stream
        self._budget.seconds_left()
        raise _ExchangeError(Failure.CONNECT_FAILED)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _vetted_addresses(self, host: str, port: int) -> list[str]:
        """The host's addresses; one that is refused refuses them all."""
        addresses = self._look_up(host, port)
        if not all(self._may_be_reached(address) for address in addresses):
            raise _ExchangeError(Failure.ADDRESS_REFUSED)
        return addresses[:MAX_ADDRESSES]

    def _may_be_reached(self, address: str) -> bool:
        return self._url.is_allowed_host or is_allowed_address(address)

    def _look_up(self, host: str, port: int) -> list[str]:
        # getaddrinfo takes no deadline: it gets a thread of its own, which is left behind when it is late.
        found: Future[list[str]] = Future()

        def look_up() -> None:
            try:
                found.set_result(list(self._resolve(host, port)))
            except (OSError, UnicodeError) as error:  # UnicodeError: a label of more than 63 characters
                found.set_exception(error)

        threading.Thread(target=look_up, name="resolve", daemon=True).start()
        try:
            addresses = found.result(self._budget.seconds_left())
        except TimeoutError as error:
            raise _ExchangeError(Failure.TIMED_OUT) from error
        except (OSError, UnicodeError) as error:
            raise _ExchangeError(Failure.NAME_NOT_RESOLVED) from error
        if not addresses:
            raise _ExchangeError(Failure.NAME_NOT_RESOLVED)
        return addresses


class _Stream(httpcore2.NetworkStream):
    """A connection on which no sequence of small steps can outlast the budget."""

    def __init__(self, connected: socket.socket, budget: _Budget) -> None:
        self._socket = connected
        self._budget = budget

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 the budget decides
        at_most = min(max_bytes, self._budget.bytes_left())
        with _failing_as(Failure.CONNECTION_LOST):
            self._socket.settimeout(self._budget.seconds_left())
            received = self._socket.recv(at_most)
        self._budget.num_bytes += len(received)
        return received

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 the budget decides
        unsent = memoryview(buffer)
        while unsent:
            try:
                self._socket.settimeout(self._budget.seconds_left())
                unsent = unsent[self._socket.send(unsent) :]
            except TimeoutError as error:
                raise _ExchangeError(Failure.TIMED_OUT) from error
            except OSError as error:
                # httpcore2 goes on to read then: a server may answer and close before it has read everything.
                raise httpcore2.WriteError from error

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002 the budget decides
    ) -> httpcore2.NetworkStream:
        with _failing_as(Failure.TLS_FAILED):
            # One timeout holds for the whole handshake.
            self._socket.settimeout(self._budget.seconds_left())
            self._socket = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
        return self

    def get_extra_info(self, info: str) -> ssl.SSLSocket | None:
        is_tls = info == "ssl_object" and isinstance(self._socket, ssl.SSLSocket)
        return cast("ssl.SSLSocket", self._socket) if is_tls else None


@contextmanager
def _failing_as(failure: Failure) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise _ExchangeError(Failure.TIMED_OUT) from error
    except OSError as error:
        raise _ExchangeError(failure) from error
