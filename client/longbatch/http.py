"""What the two clients share: headers, the text of errors, and events of a stream."""

import json
import os
import ssl
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any, Final

from longbatch.errors import ServerUnreachableError
from longbatch.server import API_URL, ServerAccess

MAX_EVENT_TRIES: Final = 8  # enough to wait through a restart of the server, which takes seconds
_MAX_PAUSE_SECONDS: Final = 5.0


def version() -> str:
    """Read the installed version, or that of the image, into which nothing is installed."""
    try:
        return metadata.version("longbatch")
    except metadata.PackageNotFoundError:
        return os.environ.get("LONGBATCH_VERSION") or "0+source"


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


def invalid_url(server: ServerAccess) -> ServerUnreachableError:
    """Return the error of an address that is none."""
    return ServerUnreachableError(f"{server.url!r} is not a valid server URL")


def unreachable(server: ServerAccess, error: Exception) -> ServerUnreachableError:
    """Return the error of a request that got no complete answer."""
    reason = str(error) or type(error).__name__
    return ServerUnreachableError(
        f"no Longbatch server answers at {server.url} ({reason}): start one with `longbatch up`,"
        f" or point to yours with --api-url or {API_URL}"
    )


def event_pause(tries: int) -> float:
    """Return how many seconds to wait before an event stream is opened again."""
    return min(0.5 * 2.0**tries, _MAX_PAUSE_SECONDS)


class EventReader:
    """Puts the lines of a stream of server-sent events together.

    Attributes:
        last_id: id of the last whole event; a new stream continues after it.
    """

    def __init__(self) -> None:
        self.last_id = ""
        self._fields: dict[str, str] = {}

    def read(self, line: str) -> tuple[str, dict[str, Any]] | None:
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
        self.last_id = fields.get("id", "")
        return fields.get("event", "message"), json.loads(fields["data"])

    def headers(self) -> dict[str, str]:
        """Return the headers of a stream that continues; an event cut in two is sent again."""
        self._fields = {}
        return {"Last-Event-ID": self.last_id} if self.last_id else {}


def read_all(reader: EventReader, lines: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events of lines."""
    for line in lines:
        event = reader.read(line)
        if event is not None:
            yield event
