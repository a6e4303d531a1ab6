"""Output while it is generated: deltas of text in a capped, expiring Redis stream for each job.

A convenience: the result in Postgres is complete without it, and losing Redis loses only live output.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

# More than the tokens of any answer that a person reads as it is generated.
MAX_ENTRIES = 20_000
EXPIRES = timedelta(minutes=10)
# Ids of jobs whose end was just recorded, so that a request waiting for one need not wait for the next poll.
ENDED_KEY = "longbatch:live:ended"
MAX_ENDED = 1_000


@dataclass(frozen=True, slots=True)
class Delta:
    """A delta: what a worker added to a job's output.

    Attributes:
        at: characters of output before it. A job that resumes after a crash publishes again what its
            checkpoint holds, so deltas may overlap.
        text: may be empty.
        num_tokens: generated so far.
        is_last: the job has ended or left the engine; its row has the details.
    """

    at: int
    text: str
    num_tokens: int
    is_last: bool = False


def stream_key(job_id: UUID) -> str:
    """Name the Redis stream that holds this job's deltas."""
    return f"longbatch:live:{job_id.hex}"


def encode(delta: Delta) -> dict[str, str]:
    """Encode a delta as the fields of a stream entry."""
    return {
        "at": str(delta.at),
        "text": delta.text,
        "tokens": str(delta.num_tokens),
        "last": "1" if delta.is_last else "",
    }


def decode(fields: Mapping[bytes, bytes]) -> Delta:
    """Decode a delta from the fields that `encode` wrote, as Redis returns them."""
    return Delta(
        at=int(fields[b"at"]),
        text=fields[b"text"].decode(),
        num_tokens=int(fields[b"tokens"]),
        is_last=bool(fields[b"last"]),
    )
