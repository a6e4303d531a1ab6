"""Server-sent events as a response, for as long as the caller's key is valid."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Send
from starlette.types import Scope as Connection

from api.http.scopes import needed_scope
from api.http.sse import EVENT_STREAM, HEADERS, error_event
from api.runtime.event_streams import OpenStream
from jobs.errors import AuthenticationError, LongbatchError
from jobs.tenants.keys import Scope

_ENDED: Final = (
    "The API key was revoked, has expired or lost the scope that this stream needs; or you signed out."
)


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
        super().__init__(_while_allowed(stream, events), media_type=EVENT_STREAM, headers=HEADERS)
        self._stream = stream
        self._describe = describe

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        """Send the events, then release the stream's place."""
        # A page of the console needs no key of its own, but ends with that of its session.
        self._stream.needed = needed_scope(scope) or Scope.READ
        has_begun = False

        async def note_and_send(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        sending = asyncio.create_task(super().__call__(scope, receive, note_and_send))
        refused = asyncio.create_task(self._stream.refused.wait())
        try:
            await asyncio.wait({sending, refused}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                await sending
                return
            sending.cancel()
            await asyncio.wait({sending})
            if not has_begun:
                headers = self.raw_headers
                await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
            last = self._describe(AuthenticationError(_ENDED))
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            for task in (sending, refused):
                task.cancel()
            await asyncio.gather(sending, refused, return_exceptions=True)
            self._stream.release()


async def _while_allowed(
    stream: OpenStream, events: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Pass events on while the key, and the session, are valid."""
    async with aclosing(events):
        async for each in events:
            if stream.refused.is_set():
                await asyncio.Event().wait()  # until the response is ended
            yield each
