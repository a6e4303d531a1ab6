"""What the two clients share: headers, the text of errors, and events of a stream."""

import json
import ssl
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from longbatch.errors import (
    ApiError,
    FileChangedError,
    InvalidUrlError,
    LongbatchError,
    ServerUnreachableError,
)
from longbatch.flows import UNAVAILABLE
from longbatch.server import API_URL, ServerAccess
from longbatch.version import version

# Runs may have more documents in progress than a pool's default; each waits in a long poll.
LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
MAX_EVENT_TRIES: Final = 8  # enough to wait through a restart of the server, which takes seconds
_MAX_PAUSE_SECONDS: Final = 5.0


def headers(server: ServerAccess) -> dict[str, str]:
    """Return the headers of every request."""
    found = {"User-Agent": f"longbatch/{version()}"}
    return found | ({"Authorization": f"Bearer {server.api_key}"} if server.api_key else {})


def trust(server: ServerAccess) -> ssl.SSLContext | bool:
    """Return what verifies the server: the system's authorities (True), or a context for its certificate."""
    if server.certificate is None:
        return True
    context = ssl.create_default_context()
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself need not be an authority's
    try:
        context.load_verify_locations(server.certificate)
    except OSError:  # it has gone or is not for this user, whose authorities may know it
        return True
    return context


def check_url(server: ServerAccess) -> None:
    """Check that the address is one of HTTP.

    Raises:
        InvalidUrlError: it is not.
    """
    try:
        parts = urlsplit(server.url)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidUrlError(
            f"{server.url!r} is not a server's URL: write http://host:port or https://host."
        )


def failure_of(server: ServerAccess, error: Exception, *, is_upload: bool = False) -> LongbatchError:
    """Return the error of a request that got no complete answer."""
    if isinstance(error, httpx2.LocalProtocolError) and is_upload:
        return FileChangedError()  # it grew or shrank below the length that was announced
    if isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.LocalProtocolError):
        return unreachable(server, error)
    return LongbatchError(f"The request to {server.url} failed: {str(error) or type(error).__name__}")


def unreachable(server: ServerAccess, error: Exception) -> ServerUnreachableError:
    """Return the error of a request that got no complete answer."""
    reason = str(error) or type(error).__name__
    return ServerUnreachableError(
        f"no Longbatch server answers at {server.url} ({reason}): start one with `longbatch up`,"
        f" or point to yours with --api-url or {API_URL}"
    )


def pause_before_stream(server: ServerAccess, error: Exception, *, tries: int) -> float:
    """Return how many seconds to wait before an event stream that broke is opened again.

    Raises:
        LongbatchError: it is no use, or was tried often enough.
    """
    if isinstance(error, ApiError):
        if error.status not in UNAVAILABLE or tries >= MAX_EVENT_TRIES:
            raise error
        return min(error.retry_after or 0.5 * 2.0**tries, _MAX_PAUSE_SECONDS)
    failure = failure_of(server, error)
    if tries >= MAX_EVENT_TRIES or not isinstance(failure, ServerUnreachableError):
        raise failure from error
    return min(0.5 * 2.0**tries, _MAX_PAUSE_SECONDS)


class EventReader:
    """Puts the blocks of a stream of server-sent events together.

    Attributes:
        last_id: id of the last whole event that has one; a new stream continues after it.
    """

    def __init__(self) -> None:
        self.last_id = ""
        self._fields: dict[str, str] = {}
        self._rest = b""

    def events(self, block: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
        """Take a block; yield name and data of each event that it ends.

        Lines end with a line feed alone: texts may contain other characters that end lines elsewhere.
        """
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            event = self._read(line.removesuffix(b"\r").decode())
            if event is not None:
                yield event

    def _read(self, line: str) -> tuple[str, dict[str, Any]] | None:
        """Take a line; return name and data of the event that it ends."""
        if line.startswith(":"):
            return None
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        self.last_id = fields.get("id", self.last_id)
        return fields.get("event", "message"), json.loads(fields["data"])

    def headers(self) -> dict[str, str]:
        """Return the headers of a stream that continues; an event cut in two is sent again."""
        self._fields, self._rest = {}, b""
        return {"Last-Event-ID": self.last_id} if self.last_id else {}
