"""Lines of a file that comes in chunks: one is held at a time, and each knows where the next begins."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileLine:
    """One line.

    Attributes:
        number: counted from 1, empty lines included.
        content: without its line feed; None: it was longer than the limit.
        end: offset in the file behind its line feed.
    """

    number: int
    content: bytes | None
    end: int

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to read."""
        return self.content is not None and not self.content.strip()


def split(
    chunks: Iterable[bytes], *, max_line_bytes: int, offset: int = 0, number: int = 1
) -> Iterator[FileLine]:
    """The lines of the chunks, the first of which begins with line `number` at `offset`."""
    pending = bytearray()
    is_skipping = False
    for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            offset += len(piece) + 1
            is_skipping = is_skipping or len(pending) + len(piece) > max_line_bytes
            whole_line = bytes(pending) + piece if pending else piece
            yield FileLine(number, None if is_skipping else whole_line, offset)
            pending.clear()
            is_skipping = False
            number += 1
        offset += len(rest)
        is_skipping = is_skipping or len(pending) + len(rest) > max_line_bytes
        if is_skipping:
            pending.clear()
        else:
            pending += rest
    if pending or is_skipping:
        yield FileLine(number, None if is_skipping else bytes(pending), offset)
