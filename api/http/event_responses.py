"""Server-sent events as an answer, sent while the caller's key is good."""

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

_ENDED: Final = "The API key was revoked, has expired or lost the scope that this stream needs."


class EventResponse(StreamingResponse):
    """Events as an answer; gives the stream's place back when the last is sent or the reader has left."""

    def __init__(
        self,
        stream: OpenStream,
        events: AsyncGenerator[bytes, None],
        *,
        describe: Callable[[LongbatchError], bytes] = error_event,
    ) -> None:
        """Make the answer; `describe` says as an event why it ends early."""
        super().__init__(_while_allowed(stream, events, describe), media_type=EVENT_STREAM, headers=HEADERS)
        self._stream = stream

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Send the events."""
        self._stream.needed = needed_scope(scope)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.release()


async def _while_allowed(
    stream: OpenStream, events: AsyncGenerator[bytes, None], describe: Callable[[LongbatchError], bytes]
) -> AsyncGenerator[bytes, None]:
    """Pass events on while the key is good; each stream has one, or a heartbeat, every ten seconds."""
    async with aclosing(events):
        async for each in events:
            if stream.is_refused:
                yield describe(AuthenticationError(_ENDED))
                return
            yield each
