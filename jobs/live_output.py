"""Output while it is generated: deltas of text in a capped, expiring Redis stream for each job.

A convenience: the result in Postgres is complete without it, and losing Redis loses only live output.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

from jobs.answers import log_probs
from jobs.answers.log_probs import LogProbs

# More than the tokens of any answer that a person reads as it is generated.
MAX_ENTRIES = 20_000
EXPIRES = timedelta(minutes=10)
# A worker publishes the rest of an output after the job's end is stored: milliseconds, or its turn of a loop.
LAST_WORDS = timedelta(seconds=5)
# Ids of jobs whose end was just committed, so that a request waiting for one need not wait for the next poll.
ENDED_KEY = "longbatch:live:ended"
MAX_ENDED = 1_000
# A script, so that any number of ends is one command: writing one and reading its answer costs a client most.
ANNOUNCE: Final = """
for place = 2, #ARGV do redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'job', ARGV[place]) end
"""


class OutputPiece(NamedTuple):
    """A stretch of output: thinking, the visible text after it, and the scores of that text's tokens."""

    reasoning: str
    text: str
    log_probs: LogProbs | None = None

    def joined(self, later: "OutputPiece") -> "OutputPiece":
        """Append a later stretch; it thinks only if this one has no visible text. Neither has scores."""
        return OutputPiece(self.reasoning + later.reasoning, self.text + later.text)

    def after(self, num_chars: int, num_scored: int = 0) -> "OutputPiece":
        """Drop this many characters of thinking and text, and this many scores."""
        scored = None if self.log_probs is None else self.log_probs.after(num_scored)
        return OutputPiece(
            self.reasoning[num_chars:], self.text[max(0, num_chars - len(self.reasoning)) :], scored
        )

    @property
    def num_chars(self) -> int:
        """Characters of both."""
        return len(self.reasoning) + len(self.text)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing in it."""
        return not (self.reasoning or self.text or self.log_probs)


@dataclass(frozen=True, slots=True)
class Delta:
    """A delta: what a worker added to a job's output.

    Attributes:
        at: characters of output before it, thinking included. A job that resumes after a crash publishes
            again what its checkpoint holds, so deltas may overlap.
        text: visible text; may be empty.
        num_tokens: generated so far.
        is_last: the job has ended or left the engine; its row has the details.
        reasoning: thinking, which comes before all visible text; may be empty.
        log_probs: scores of tokens, as `answers.log_probs` packs them; empty: there are none.
    """

    at: int
    text: str
    num_tokens: int
    is_last: bool = False
    reasoning: str = ""
    log_probs: bytes = b""

    def after(self, num_sent: int, num_scored: int | None = None) -> OutputPiece:
        """Return what a reader gets of it that has `num_sent` characters.

        Nothing if a delta before it was lost: the reader gets the rest from the result.

        Args:
            num_sent: characters that the reader has.
            num_scored: scores that it has; None: it wants none.
        """
        scored = None
        if self.log_probs and num_scored is not None:
            scored = log_probs.read(self.log_probs).after(num_scored)
        if self.at > num_sent:
            return OutputPiece("", "", scored)
        return OutputPiece(self.reasoning, self.text).after(num_sent - self.at)._replace(log_probs=scored)


def stream_key(job_id: UUID) -> str:
    """Name the Redis stream that holds this job's deltas."""
    return f"longbatch:live:{job_id.hex}"


def announcement(ended: Collection[UUID]) -> list[str]:
    """Return what `ANNOUNCE` takes to tell of the ends of these jobs: its key and its arguments."""
    return [ENDED_KEY, str(MAX_ENDED), *(each.hex for each in ended)]


def ended_job(fields: Mapping[bytes, bytes]) -> UUID:
    """Read the job from an entry of an `announcement`, as Redis returns its fields."""
    return UUID(fields[b"job"].decode())


def encode(delta: Delta) -> dict[str, str | bytes]:
    """Encode a delta as the fields of a stream entry."""
    scored: dict[str, str | bytes] = {"log_probs": delta.log_probs} if delta.log_probs else {}
    return scored | {
        "at": str(delta.at),
        "text": delta.text,
        "tokens": str(delta.num_tokens),
        "last": "1" if delta.is_last else "",
        "reasoning": delta.reasoning,
    }


def decode(fields: Mapping[bytes, bytes]) -> Delta:
    """Decode a delta from the fields that `encode` wrote, as Redis returns them."""
    return Delta(
        at=int(fields[b"at"]),
        text=fields[b"text"].decode(),
        num_tokens=int(fields[b"tokens"]),
        is_last=bool(fields[b"last"]),
        reasoning=fields.get(b"reasoning", b"").decode(),  # workers of the release before send none
        log_probs=bytes(fields.get(b"log_probs", b"")),
    )
