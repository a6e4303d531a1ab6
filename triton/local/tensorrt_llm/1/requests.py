"""A request inside an engine: a sequence, how far its client was told, and whether that client is there."""

import time
from dataclasses import dataclass, field
from typing import Protocol

from .scheduler import Scheduler, Sequence

_WAITING_LOOKS = 8  # queued requests looked at each time: a look is a round trip to the server process


class Reply(Protocol):
    """The response stream of one request. After its last response it takes nothing more."""

    def send(self, ids: list[int], *, final: bool) -> None:
        """The client gets these tokens; none with `final` is the sign of the end token."""
        ...

    def fail(self, message: str) -> None:
        """The stream has ended with an error."""
        ...

    def cancel(self) -> None:
        """The stream has ended because its client asked for that."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the client has gone or cancelled."""
        ...


@dataclass(eq=False, kw_only=True)
class Request:
    """One request and how far its client has been told.

    Attributes:
        request_id: the client's name for it; may be empty and need not be unique.
        sequence: what the scheduler knows of it.
        reply: where its tokens go.
        tokens_per_response: tokens gathered into one response; None gathers all into one at the end.
        num_said: tokens so far.
        pending: of those, the last ones, which were not sent.
    """

    request_id: str
    sequence: Sequence
    reply: Reply
    tokens_per_response: int | None
    num_said: int = 0
    pending: list[int] = field(default_factory=list)

    def say(self, token: int) -> None:
        """The token will be sent."""
        self.pending.append(token)
        self.num_said += 1

    def send(self) -> None:
        """What was said is sent when there is enough of it; the first token at once."""
        has_sent = self.num_said > len(self.pending)
        if self.tokens_per_response and (not has_sent or len(self.pending) >= self.tokens_per_response):
            self.flush()

    def flush(self) -> None:
        """Nothing that was said is held back; a request that does not stream holds all back to its end."""
        if self.pending and self.tokens_per_response:
            self.reply.send(self.pending, final=False)
            self.pending = []

    def end(self) -> None:
        """The final response is sent, with the last tokens."""
        self.reply.send(self.pending, final=True)

    def end_with_end_token(self) -> None:
        """The final response is sent; in a stream it holds no token, which is the end token's only trace."""
        self.flush()
        self.end()


class Looks:
    """Whose clients are asked whether they have gone: all active ones', and a long queue's in turns."""

    def __init__(self, scheduler: Scheduler, period: float) -> None:
        """Args: period: seconds between looks."""
        self._scheduler = scheduler
        self._period = period
        self._next = 0.0
        self._looked = 0

    def due(self) -> list[Sequence]:
        """Those to be asked now; none until the period has passed."""
        now = time.monotonic()
        if now < self._next:
            return []
        self._next = now + self._period
        waiting = self._scheduler.waiting
        places = range(self._looked, self._looked + min(_WAITING_LOOKS, len(waiting)))
        self._looked = places.stop % max(1, len(waiting))
        return [*self._scheduler.active, *(waiting[place % len(waiting)] for place in places)]
