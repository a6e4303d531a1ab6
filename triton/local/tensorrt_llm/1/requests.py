"""A request inside the engine: a sequence, what it says, and to whom."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from .scheduler import Sequence
from .speech import Speech


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


@dataclass(eq=False)
class Request:
    """One request and how far its client has been told.

    Attributes:
        request_id: the client's name for it; may be empty and need not be unique.
        sequence: what the scheduler knows of it.
        reply: where its tokens go.
        speech: what it says, once that is worked out.
        tokens_per_response: tokens gathered into one response; None gathers all into one at the end.
        num_said: tokens handed to `pending` so far.
        pending: tokens that are said but not sent.
        wakes_at: monotonic time at which a silence ends, None when not silent.
        rested_at: the index before which the last silence was.
    """

    request_id: str
    sequence: Sequence
    reply: Reply
    speech: "Future[Speech]"
    tokens_per_response: int | None
    num_said: int = 0
    pending: list[int] = field(default_factory=list)
    wakes_at: float | None = None
    rested_at: int = -1

    def say(self, token: int) -> None:
        """The token is sent, with others before it, when there are enough; the first one at once."""
        self.pending.append(token)
        self.num_said += 1
        is_first = self.num_said == 1
        if self.tokens_per_response and (is_first or len(self.pending) >= self.tokens_per_response):
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
