"""A request inside an engine: its sequence, the tokens sent to its client, and that client's cancels."""

import time
from dataclasses import dataclass, field
from typing import Protocol

from .scheduler import Scheduler, Sequence

_WAITING_LOOKS = 8  # queued requests polled each time: a poll is a round trip to the server process


class Reply(Protocol):
    """The response stream of one request. It accepts nothing after its last response."""

    def send(self, ids: list[int], *, final: bool) -> None:
        """Send these tokens to the client. None with `final` signals the end token."""
        ...

    def fail(self, message: str) -> None:
        """End the stream with an error."""
        ...

    def cancel(self) -> None:
        """End the stream because its client cancelled."""
        ...

    def is_cancelled(self) -> bool:
        """Return True if the client cancelled or disconnected."""
        ...


@dataclass(eq=False, kw_only=True)
class Request:
    """One request and the tokens that its client has received.

    Attributes:
        request_id: the client's name for it; may be empty and need not be unique.
        sequence: its state in the scheduler.
        reply: the stream that its tokens go to.
        tokens_per_response: tokens gathered into one response; None gathers all into one at the end.
        num_said: tokens generated so far.
        pending: the last of those tokens, not sent yet.
    """

    request_id: str
    sequence: Sequence
    reply: Reply
    tokens_per_response: int | None
    num_said: int = 0
    pending: list[int] = field(default_factory=list)

    def say(self, token: int) -> None:
        """Append a token to be sent."""
        self.pending.append(token)
        self.sequence.said.append(token)
        self.num_said += 1

    def send(self) -> None:
        """Send the pending tokens once there are enough. The first token is sent at once."""
        has_sent = self.num_said > len(self.pending)
        if self.tokens_per_response and (not has_sent or len(self.pending) >= self.tokens_per_response):
            self.flush()

    def flush(self) -> None:
        """Send all pending tokens, unless the request does not stream: then they wait for its end."""
        if self.pending and self.tokens_per_response:
            self.reply.send(self.pending, final=False)
            self.pending = []

    def end(self) -> None:
        """Send the final response with the last tokens."""
        self.reply.send(self.pending, final=True)

    def end_with_end_token(self) -> None:
        """Send a final response. In a stream it holds no token, which is the only sign of an end token."""
        self.flush()
        self.end()


class Looks:
    """The choice of requests to poll for cancels: all active ones, and a long queue's in turns."""

    def __init__(self, scheduler: Scheduler, period: float) -> None:
        """Args: period: seconds between polls."""
        self._scheduler = scheduler
        self._period = period
        self._next = 0.0
        self._looked = 0

    def due(self) -> list[Sequence]:
        """Return the sequences to poll now; none until the period has passed."""
        now = time.monotonic()
        if now < self._next:
            return []
        self._next = now + self._period
        waiting = self._scheduler.waiting
        places = range(self._looked, self._looked + min(_WAITING_LOOKS, len(waiting)))
        self._looked = places.stop % max(1, len(waiting))
        return [*self._scheduler.active, *(waiting[place % len(waiting)] for place in places)]
