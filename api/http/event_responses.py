"""Server-sent events as a response, for as long as the caller's key is valid."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from api.http.scopes import needed_scope
from api.http.sse import EVENT_STREAM, HEADERS, error_event
from api.runtime.event_streams import OpenStream
from jobs.errors import AuthenticationError, LongbatchError
from jobs.tenants.keys import Scope

_ENDED: Final = "The API key was revoked, has expired or lost the scope that this stream needs."


class EventResponse(StreamingResponse):
    """A stream of events that releases its place after the last event or when the reader leaves."""

    def __init__(
        self,
        stream: OpenStream,
        events: AsyncGenerator[bytes, None],
        *,
        describe: Callable[[LongbatchError], bytes] = error_event,
    ) -> None:
        """Make the response; `describe` renders the error that ends it early as an event."""
        super().__init__(_while_allowed(stream, events, describe), media_type=EVENT_STREAM, headers=HEADERS)
        self._stream = stream

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Send the events, then release the stream's place."""
        # A page of the console needs no key of its own, but ends with that of its session.
        self._stream.needed = needed_scope(scope) or Scope.READ
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.release()


async def _while_allowed(
    stream: OpenStream, events: AsyncGenerator[bytes, None], describe: Callable[[LongbatchError], bytes]
) -> AsyncGenerator[bytes, None]:
    """Pass events on while the key is valid.

    Each stream sends an event or a heartbeat at least every ten seconds, so the check runs that often.
    """
    async with aclosing(events):
        async for each in events:
            if stream.is_refused:
                yield describe(AuthenticationError(_ENDED))
                return
            yield each
