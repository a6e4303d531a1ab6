"""A network that leads to no private address and in which nothing outlasts one budget of time and bytes."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address
from typing import Final, cast

import httpcore2

from jobs.addresses import is_allowed_address
from jobs.webhooks import ParsedUrl

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
    SECRET_UNREADABLE = "secret_unreadable"  # noqa: S105  # a code
    INTERNAL_ERROR = "internal_error"


def resolve_host(host: str, port: int) -> list[str]:
    """The system's addresses of a host, each once; may block for long."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class ExchangeError(Exception):
    """The exchange ends without a status."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


@dataclass(slots=True)
class Budget:
    """What one exchange may still use.

    Attributes:
        ends_at: seconds of the monotonic clock.
        num_bytes: received so far.
    """

    ends_at: float
    num_bytes: int = 0

    def seconds_left(self) -> float:
        """More than 0.

        Raises:
            ExchangeError: no time is left.
        """
        left = self.ends_at - time.monotonic()
        if left <= 0:
            raise ExchangeError(Failure.TIMED_OUT)
        return left

    def bytes_left(self) -> int:
        """More than 0.

        Raises:
            ExchangeError: the answer is as long as it may be.
        """
        left = MAX_RESPONSE_BYTES - self.num_bytes
        if left <= 0:
            raise ExchangeError(Failure.RESPONSE_TOO_LARGE)
        return left


class Network(httpcore2.NetworkBackend):
    """Connects to addresses that were looked at, and keeps every operation within the budget."""

    def __init__(self, url: ParsedUrl, budget: Budget, resolve: Resolve) -> None:
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
        """A connection to the first of the host's addresses that takes one.

        Raises:
            ExchangeError: the name has no address, one of them is refused, or none takes a connection.
        """
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
                raise ExchangeError(Failure.ADDRESS_REFUSED)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._stream
        self._budget.seconds_left()
        raise ExchangeError(Failure.CONNECT_FAILED)

    def close(self) -> None:
        """The connection is closed, if there was one."""
        if self._stream is not None:
            self._stream.close()

    def _vetted_addresses(self, host: str, port: int) -> list[str]:
        """The host's addresses; one that is refused refuses them all."""
        addresses = self._look_up(host, port)
        if not all(self._may_be_reached(address) for address in addresses):
            raise ExchangeError(Failure.ADDRESS_REFUSED)
        return addresses[:MAX_ADDRESSES]

    def _may_be_reached(self, address: str) -> bool:
        return self._url.is_allowed_host or is_allowed_address(address)

    def _look_up(self, host: str, port: int) -> list[str]:
        if _is_literal(host):
            return [host]
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
            raise ExchangeError(Failure.TIMED_OUT) from error
        except (OSError, UnicodeError) as error:
            raise ExchangeError(Failure.NAME_NOT_RESOLVED) from error
        if not addresses:
            raise ExchangeError(Failure.NAME_NOT_RESOLVED)
        return addresses


def _is_literal(host: str) -> bool:
    """Whether the host is an address already, which nobody has to look up."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class _Stream(httpcore2.NetworkStream):
    """A connection on which no sequence of small steps can outlast the budget."""

    def __init__(self, connected: socket.socket, budget: Budget) -> None:
        self._socket = connected
        self._budget = budget
        self._unsent = bytearray()

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002 the budget decides
        self._send_all()
        at_most = min(max_bytes, self._budget.bytes_left())
        with _failing_as(Failure.CONNECTION_LOST):
            self._socket.settimeout(self._budget.seconds_left())
            received = self._socket.recv(at_most)
        self._budget.num_bytes += len(received)
        return received

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 the budget decides
        # Sent with the first read: head and body are one packet, where each would be one of its own.
        self._unsent += buffer

    def _send_all(self) -> None:
        unsent, self._unsent = memoryview(self._unsent), bytearray()
        try:
            while unsent:
                self._socket.settimeout(self._budget.seconds_left())
                unsent = unsent[self._socket.send(unsent) :]
        except TimeoutError as error:
            raise ExchangeError(Failure.TIMED_OUT) from error
        except OSError:
            # A server may answer and close before it has read everything: what it said can be read still.
            return

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
        raise ExchangeError(Failure.TIMED_OUT) from error
    except OSError as error:
        raise ExchangeError(failure) from error
