"""The prefixes of a prompt: hashes of its first tokens at growing lengths, to find jobs that begin alike.

An engine that reuses its KV cache computes a common beginning once. Which jobs share one shows in a few
hashes, without their tokens: each is of all tokens up to its length, so equal hashes mean equal beginnings.

A few lengths an octave find the jobs that begin alike. How much of a document they share then shows at finer
lengths, from where such prompts are certain to be equal: with a question after each document, no coarse
length is near the document's end.

Stored hashes are keyed by the tenant: equal documents of two tenants have different ones, so nothing asked of
them tells a tenant what another one has.
"""

from bisect import bisect_left
from collections.abc import Iterator
from hashlib import blake2b, sha256
from itertools import chain, count, takewhile
from typing import Final, NamedTuple
from uuid import UUID

from jobs.prompts.tokenizer import TokenIds

# Tokens. Below it, reading again costs less than an iteration.
SHORTEST: Final = 256
# Lengths in each octave. All are multiples of 64, so of any usual block; up to a fifth of what is shared may
# lie beyond the last equal one.
_PER_OCTAVE: Final = 4
# Finer lengths in each octave, unless they were closer than a usual block: beyond the last equal one lies at
# most 0.4 % of what is shared, or less than such a block.
_FINE_PER_OCTAVE: Final = 256
_FINEST: Final = 64
_DIGEST_BYTES: Final = 16
# Stored, of each hash: enough to tell apart the prompts of one tenant.
_KEPT_BYTES: Final = 8
# Stored, of each at a finer length: enough for two prompts that are equal at the length before.
_KEPT_FINE_BYTES: Final = 4
# Prompts of one family begin alike for at least half of their length, and for this many tokens: to read so
# many again takes some 17 decode steps.
_SHORTEST_OF_FAMILY: Final = 2048
# The same as `adapted`, in SQL, for a job's row.
ADAPTED_FAMILY: Final = (
    "CASE WHEN adapter IS NULL THEN {0} ELSE substr(sha256({0} || convert_to(adapter, 'UTF8')), 1, 8) END"
)
_PART_OF_FAMILY: Final = 0.9  # a question after a document is seldom longer than a tenth of it


class Digests(NamedTuple):
    """Hashes of one prompt's beginnings.

    Attributes:
        prefixes: at the lengths of all prompts, the shortest first.
        whole: of all tokens; empty if there are fewer than `SHORTEST`.
        fine: at the finer lengths of its family, the shortest first; empty: it has no family.
    """

    prefixes: tuple[bytes, ...] = ()
    whole: bytes = b""
    fine: tuple[bytes, ...] = ()


NO_DIGESTS: Final = Digests()


class StoredPrefixes(NamedTuple):
    """What is stored of a prompt's hashes, and the length of the prompt, which tells their places."""

    kept: bytes
    num_tokens: int

    @property
    def prefixes(self) -> bytes:
        """The hashes at the lengths of all prompts."""
        return self.kept[: _KEPT_BYTES * _num_lengths(self.num_tokens)]

    @property
    def fine(self) -> bytes:
        """The hashes at the finer lengths; empty if the prompt was counted before those were kept."""
        return self.kept[_KEPT_BYTES * (_num_lengths(self.num_tokens) + 1) :]


def digests(ids: TokenIds) -> Digests:
    """Hash the prefixes of a prompt.

    6 to 20 microseconds for 1,000 tokens, of some 1,600 that counting them takes.
    """
    if len(ids) < SHORTEST:
        return NO_DIGESTS
    found, state, done = dict[int, bytes](), blake2b(digest_size=_DIGEST_BYTES), 0
    lengths, fine = list(_lengths(len(ids))), list(_fine_lengths(len(ids)))
    for length in sorted({*lengths, *fine, len(ids)}):
        state.update(ids[done:length].data)
        found[length] = state.digest()
        done = length
    return Digests(
        tuple(found[each] for each in lengths), found[len(ids)], tuple(found[each] for each in fine)
    )


def keyed(found: Digests, tenant_id: UUID) -> bytes:
    """Make of these hashes what is stored: the tenant's own ones.

    Those of all prompts, of 8 bytes each. If there are finer ones, that of the whole prompt, and those, of 4
    bytes each, 1.2 KB at most: a process of the release before takes what follows for hashes at greater
    lengths, and finds the first one equal only if the prompts are.
    """
    kept = [_keyed(each, tenant_id, size=_KEPT_BYTES) for each in found.prefixes]
    if found.fine:
        kept.append(_keyed(found.whole, tenant_id, size=_KEPT_BYTES))
        kept += [_keyed(each, tenant_id, size=_KEPT_FINE_BYTES) for each in found.fine]
    return b"".join(kept)


def num_kept_bytes(found: Digests) -> int:
    """Return the size of what `keyed` makes of these hashes."""
    return _KEPT_BYTES * (len(found.prefixes) + bool(found.fine)) + _KEPT_FINE_BYTES * len(found.fine)


def family_tokens(num_tokens: int) -> int:
    """Return how many tokens prompts of this length and one family surely have in common; 0: none."""
    length = 1 << (int(_PART_OF_FAMILY * num_tokens).bit_length() - 1) if num_tokens > 1 else 0
    return length if length >= _SHORTEST_OF_FAMILY else 0


def longer_tokens(num_tokens: int) -> int:
    """Return the length of the family of longer prompts that begin alike; 0: it is this one's.

    This one is hashed there, too.
    """
    length = 2 * family_tokens(num_tokens)
    return length if length <= num_tokens else 0


def shorter_tokens(num_tokens: int) -> int:
    """Return the length of the family of shorter prompts that begin alike; 0: it is this one's, or none."""
    length = family_tokens(int(_PART_OF_FAMILY * num_tokens))
    return length if length < family_tokens(num_tokens) else 0


def family_place(num_tokens: int) -> int:
    """Return where in stored prefixes the family of a prompt of this length begins, in bytes; -1: nowhere."""
    return _place_of(family_tokens(num_tokens))


def family(prefixes: bytes, num_tokens: int) -> bytes | None:
    """Return the family of a prompt with these stored prefixes: jobs of one begin alike for the most part.

    Returns:
        None if the prompt is too short, or its prefixes are unknown.
    """
    place = family_place(num_tokens)
    return prefixes[place : place + _KEPT_BYTES] or None if place >= 0 else None


def longer_family(stored: StoredPrefixes) -> bytes | None:
    """Return the family of longer prompts that begin like this one, if that is another one."""
    return _family_at(longer_tokens(stored.num_tokens), stored)


def shorter_family(stored: StoredPrefixes) -> bytes | None:
    """Return the family of shorter prompts that may begin like this one, if that is another one.

    They do if this prompt's family is their `longer_family`.
    """
    return _family_at(shorter_tokens(stored.num_tokens), stored)


def family_of(found: Digests, num_tokens: int, tenant_id: UUID) -> bytes | None:
    """Return the family of a prompt with these hashes; see `family`."""
    place = family_place(num_tokens) // _KEPT_BYTES
    if not 0 <= place < len(found.prefixes):
        return None
    return _keyed(found.prefixes[place], tenant_id, size=_KEPT_BYTES)


def adapted(found: bytes | None, adapter: str | None) -> bytes | None:
    """Return the family of jobs that ask for an adapter: what an engine cached is of one adapter alone."""
    if found is None or adapter is None:
        return found
    return sha256(found + adapter.encode()).digest()[:_KEPT_BYTES]


def shared_tokens(one: StoredPrefixes, other: StoredPrefixes) -> int:
    """Return how many tokens two prompts of a tenant surely have in common."""
    num_equal = _num_equal(one.prefixes, other.prefixes, size=_KEPT_BYTES)
    shared = _length(num_equal - 1) if num_equal else 0
    family = max(map(family_tokens, (one.num_tokens, other.num_tokens)))
    if not family or shared < family:
        return shared
    fine = (_fine_from(family, each) for each in (one, other))
    return max(shared, _fine_length(family, _num_equal(*fine, size=_KEPT_FINE_BYTES)))


def hashed_tokens(num_tokens: int, *, of: int) -> int:
    """Return the greatest length up to this one at which a prompt of `of` tokens is hashed; 0: none."""
    lengths = chain(_lengths(of), _fine_lengths(of))
    return max((each for each in lengths if each <= num_tokens), default=0)


def _place_of(length: int) -> int:
    """Return where in stored prefixes the hash at this power of two begins, in bytes; -1: nowhere."""
    return _KEPT_BYTES * _PER_OCTAVE * ((length // SHORTEST).bit_length() - 1) if length else -1


def _family_at(length: int, stored: StoredPrefixes) -> bytes | None:
    place = _place_of(length)
    return stored.prefixes[place : place + _KEPT_BYTES] or None if place >= 0 else None


def _fine_from(family: int, stored: StoredPrefixes) -> bytes:
    """Return the hashes at the finer lengths of this family, which may be that of longer prompts."""
    mine = family_tokens(stored.num_tokens)
    if mine == family:
        return stored.fine
    # Its own go on beyond the next power of two in the steps of the family there.
    beyond = mine // max(_FINEST, mine // _FINE_PER_OCTAVE)
    return stored.fine[_KEPT_FINE_BYTES * beyond :] if 2 * mine == family else b""


def _keyed(digest: bytes, tenant_id: UUID, *, size: int) -> bytes:
    return blake2b(digest, digest_size=size, key=tenant_id.bytes).digest()


def _num_equal(one: bytes, other: bytes, *, size: int) -> int:
    """Count the hashes of this size before the first that differs."""
    places = range(1, min(len(one), len(other)) // size + 1)
    return bisect_left(places, True, key=lambda place: one[: size * place] != other[: size * place])


def _lengths(num_tokens: int) -> Iterator[int]:
    """Yield the lengths at which every prompt is hashed, as 256, 320, 384, 448, 512, 640."""
    return map(_length, range(_num_lengths(num_tokens)))


def _num_lengths(num_tokens: int) -> int:
    if num_tokens < SHORTEST:
        return 0
    octave = (num_tokens // SHORTEST).bit_length() - 1
    return _PER_OCTAVE * octave + num_tokens * _PER_OCTAVE // (SHORTEST << octave) - _PER_OCTAVE + 1


def _length(place: int) -> int:
    octave, step = divmod(place, _PER_OCTAVE)
    return (SHORTEST << octave) // _PER_OCTAVE * (_PER_OCTAVE + step)


def _fine_lengths(num_tokens: int) -> Iterator[int]:
    """Yield the finer lengths of a prompt: the family says which, the prompt how many."""
    family = family_tokens(num_tokens)
    places = count(1) if family else ()
    return takewhile(lambda length: length <= num_tokens, (_fine_length(family, each) for each in places))


def _fine_length(family: int, place: int) -> int:
    """Return a finer length of this family; place 0 is the family's own, the others follow."""
    step = max(_FINEST, family // _FINE_PER_OCTAVE)
    beyond = max(0, place - family // step)  # in the next octave
    return family + (place - beyond) * step + beyond * max(_FINEST, 2 * family // _FINE_PER_OCTAVE)
