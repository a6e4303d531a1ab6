"""Where bars lie: each keeps its place for as long as it is shown; pure arithmetic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Self
from uuid import UUID

Piece = tuple[int, int]  # from here, so many
_NO_PIECES: Final[Sequence[Piece]] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """What takes room for a time.

    Attributes:
        key: names it.
        start: on any clock.
        end: on the same; infinite while it is not known.
        size: room that it takes.
    """

    key: UUID
    start: float
    end: float
    size: int


@dataclass(slots=True)
class Shelf:
    """So much room, from 0, and which part each item has.

    Pages of a KV cache lie anywhere in it, so an item for which no gap is large enough gets several. What was
    placed once stays where it is, however the other items come and go. Items that together need more than
    there is lie above.

    Attributes:
        room: that there is.
        pieces: of each item, from the lowest.
    """

    room: int
    pieces: dict[UUID, Sequence[Piece]] = field(default_factory=dict)

    def place(self, items: Iterable[Item]) -> Mapping[UUID, Sequence[Piece]]:
        """Give each item its room, and forget all others."""
        known = {item.key: item for item in items}
        self.pieces = {key: pieces for key, pieces in self.pieces.items() if key in known}
        for item in sorted(known.values(), key=lambda each: (each.start, each.key)):
            mine = self.pieces.get(item.key, _NO_PIECES)
            lacking = item.size - sum(size for _, size in mine)
            if lacking > 0:
                taken = [
                    piece
                    for key, pieces in self.pieces.items()
                    if key == item.key or _meet(known[key], item)
                    for piece in pieces
                ]
                self.pieces[item.key] = _joined([*mine, *_find_room(lacking, taken, room=self.room)])
        return self.pieces

    def copy(self) -> Self:
        """Return another shelf with the same items."""
        return type(self)(self.room, dict(self.pieces))


def _meet(one: Item, other: Item) -> bool:
    return one.start < other.end and other.start < one.end


def _find_room(size: int, taken: Iterable[Piece], *, room: int) -> list[Piece]:
    """Take the smallest gap that is large enough, otherwise several from below."""
    gaps = _gaps(taken, room=room)
    large = [(length, start) for start, length in gaps if length >= size and start < room]
    if large:
        return [(min(large)[1], size)]
    pieces = []
    for start, length in gaps:
        part = int(min(size, length))
        pieces.append((start, part))
        size -= part
        if not size:
            break
    return pieces


def _gaps(taken: Iterable[Piece], *, room: int) -> list[tuple[int, float]]:
    """List where nothing lies, from below; the last gap is above the room, and endless."""
    gaps: list[tuple[int, float]] = []
    end = 0
    for start, size in sorted(taken):
        if min(start, room) > end:
            gaps.append((end, min(start, room) - end))
        if start > max(end, room):
            gaps.append((max(end, room), start - max(end, room)))
        end = max(end, start + size)
    if end < room:
        gaps.append((end, room - end))
    return [*gaps, (max(end, room), inf)]


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Sort the pieces and join those that touch."""
    joined: list[Piece] = []
    for start, size in sorted(pieces):
        if joined and sum(joined[-1]) == start:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((start, size))
    return joined
