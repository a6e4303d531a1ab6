"""The prefixes of a prompt: hashes of its first tokens at growing lengths, to find jobs that begin alike.

An engine that reuses its KV cache computes a common beginning once. Which jobs share one shows in a few
hashes, without their tokens: each is of all tokens up to its length, so equal hashes mean equal beginnings.

Stored hashes are keyed by the tenant: equal documents of two tenants have different ones, so nothing asked of
them tells a tenant what another one has.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b, sha256
from itertools import count, takewhile
from typing import Final
from uuid import UUID

from jobs.prompts.tokenizer import TokenIds

# Tokens. Below it, reading again costs less than an iteration.
SHORTEST: Final = 256
# Lengths in each octave. All are multiples of 64, so of any usual block; up to a fifth of what is shared may
# lie beyond the last equal one.
_PER_OCTAVE: Final = 4
_DIGEST_BYTES: Final = 16
# Stored, of each hash: enough to tell apart the prompts of one tenant.
_KEPT_BYTES: Final = 8
# Prompts of one family begin alike for at least half of their length, and for this many tokens: to read so
# many again takes some 17 decode steps.
_SHORTEST_OF_FAMILY: Final = 2048
# The same as `adapted`, in SQL, for a job's row.
ADAPTED_FAMILY: Final = (
    "CASE WHEN adapter IS NULL THEN {0} ELSE substr(sha256({0} || convert_to(adapter, 'UTF8')), 1, 8) END"
)
_PART_OF_FAMILY: Final = 0.9  # a question after a document is seldom longer than a tenth of it


def digests(ids: TokenIds) -> tuple[bytes, ...]:
    """Hash the prefixes of a prompt, the shortest first.

    5 to 10 microseconds for 1,000 tokens, of some 1,600 that counting them takes.
    """
    found = []
    state, done = blake2b(digest_size=_DIGEST_BYTES), 0
    for length in _lengths(len(ids)):
        state.update(ids[done:length].data)
        found.append(state.digest())
        done = length
    return tuple(found)


def keyed(found: Sequence[bytes], tenant_id: UUID) -> bytes:
    """Make of these hashes what is stored: the tenant's own ones, of 8 bytes each."""
    key = tenant_id.bytes
    return b"".join(blake2b(each, digest_size=_KEPT_BYTES, key=key).digest() for each in found)


def family_tokens(num_tokens: int) -> int:
    """Return how many tokens prompts of this length and one family surely have in common; 0: none."""
    length = 1 << (int(_PART_OF_FAMILY * num_tokens).bit_length() - 1) if num_tokens > 1 else 0
    return length if length >= _SHORTEST_OF_FAMILY else 0


def family_place(num_tokens: int) -> int:
    """Return where in stored prefixes the family of a prompt of this length begins, in bytes; -1: nowhere."""
    length = family_tokens(num_tokens)
    return _KEPT_BYTES * _PER_OCTAVE * ((length // SHORTEST).bit_length() - 1) if length else -1


def family(prefixes: bytes, num_tokens: int) -> bytes | None:
    """Return the family of a prompt with these stored prefixes: jobs of one begin alike for the most part.

    Returns:
        None if the prompt is too short, or its prefixes are unknown.
    """
    place = family_place(num_tokens)
    return prefixes[place : place + _KEPT_BYTES] or None if place >= 0 else None


def family_of(found: Sequence[bytes], num_tokens: int, tenant_id: UUID) -> bytes | None:
    """Return the family of a prompt with these hashes; see `family`."""
    place = family_place(num_tokens) // _KEPT_BYTES
    return keyed(found[place : place + 1], tenant_id) or None if place >= 0 else None


def adapted(found: bytes | None, adapter: str | None) -> bytes | None:
    """Return the family of jobs that ask for an adapter: what an engine cached is of one adapter alone."""
    if found is None or adapter is None:
        return found
    return sha256(found + adapter.encode()).digest()[:_KEPT_BYTES]


def common(one: bytes, other: bytes) -> bytes:
    """Return the stored prefixes that two prompts of a tenant have in common."""
    return one[: _KEPT_BYTES * _num_equal(one, other)]


def num_kept_bytes(found: Sequence[bytes]) -> int:
    """Return the size of what `keyed` makes of these hashes."""
    return _KEPT_BYTES * len(found)


def shared_tokens(one: bytes, other: bytes) -> int:
    """Return how many tokens two prompts of a tenant surely have in common, given their stored prefixes."""
    num_equal = _num_equal(one, other)
    return _length(num_equal - 1) if num_equal else 0


def _num_equal(one: bytes, other: bytes) -> int:
    pairs = zip(_kept(one), _kept(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def hashed_tokens(num_tokens: int) -> int:
    """Return the greatest length of at most so many tokens at which a prompt is hashed; 0: none."""
    return max(_lengths(num_tokens), default=0)


def _lengths(num_tokens: int) -> Iterator[int]:
    """Yield the lengths at which a prompt is hashed, as 256, 320, 384, 448, 512, 640."""
    return takewhile(lambda length: length <= num_tokens, map(_length, count()))


def _length(place: int) -> int:
    octave, step = divmod(place, _PER_OCTAVE)
    return (SHORTEST << octave) // _PER_OCTAVE * (_PER_OCTAVE + step)


def _kept(prefixes: bytes) -> list[bytes]:
    return [prefixes[at : at + _KEPT_BYTES] for at in range(0, len(prefixes), _KEPT_BYTES)]
