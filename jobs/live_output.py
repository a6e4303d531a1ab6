"""Output while it is generated: pieces of text in a capped, expiring Redis stream for each job.

A convenience: the result in Postgres is complete without it, and losing Redis loses only liveliness.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

# More than the tokens of any answer that somebody reads as it comes.
MAX_ENTRIES = 20_000
EXPIRES = timedelta(minutes=10)
# Ids of jobs whose end has just been recorded: whoever waits for one need not wait for the next look.
ENDED_KEY = "longbatch:live:ended"
MAX_ENDED = 1_000


@dataclass(frozen=True, slots=True)
class Piece:
    """What a worker added to a job's output.

    Attributes:
        at: characters of the output before it. A job that goes on after a crash tells again what its
            checkpoint holds, so pieces may overlap.
        text: perhaps empty.
        num_tokens: generated so far.
        is_last: the job's end is recorded, or it left the engine: its row says more.
    """

    at: int
    text: str
    num_tokens: int
    is_last: bool = False


def stream_key(job_id: UUID) -> str:
    """Where the pieces of this job are."""
    return f"longbatch:live:{job_id.hex}"


def encode(piece: Piece) -> dict[str, str]:
    """As fields of an entry."""
    return {
        "at": str(piece.at),
        "text": piece.text,
        "tokens": str(piece.num_tokens),
        "last": "1" if piece.is_last else "",
    }


def decode(fields: Mapping[bytes, bytes]) -> Piece:
    """The piece that `encode` wrote, as Redis gives it back."""
    return Piece(
        at=int(fields[b"at"]),
        text=fields[b"text"].decode(),
        num_tokens=int(fields[b"tokens"]),
        is_last=bool(fields[b"last"]),
    )
