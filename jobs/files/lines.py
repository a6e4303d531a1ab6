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


class Splitter:
    """Takes chunks and gives lines; the first chunk begins with line `number` at `offset`."""

    def __init__(self, *, max_line_bytes: int, offset: int = 0, number: int = 1) -> None:
        self._max_line_bytes = max_line_bytes
        self._offset = offset
        self._number = number
        self._pending = bytearray()
        self._is_skipping = False

    def feed(self, chunk: bytes) -> Iterator[FileLine]:
        """The lines that end in this chunk."""
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            self._offset += 1
            self._take(piece)
            yield self._line()
        self._take(rest)

    def close(self) -> Iterator[FileLine]:
        """The last line, if no line feed ends it."""
        if self._pending or self._is_skipping:
            yield self._line()

    def _take(self, piece: bytes) -> None:
        self._offset += len(piece)
        if self._is_skipping or len(self._pending) + len(piece) > self._max_line_bytes:
            self._is_skipping = True
            self._pending.clear()
        else:
            self._pending += piece

    def _line(self) -> FileLine:
        content = None if self._is_skipping else bytes(self._pending)
        line = FileLine(self._number, content, self._offset)
        self._number += 1
        self._pending.clear()
        self._is_skipping = False
        return line


def split(
    chunks: Iterable[bytes], *, max_line_bytes: int, offset: int = 0, number: int = 1
) -> Iterator[FileLine]:
    """The lines of the chunks, the first of which begins with line `number` at `offset`."""
    splitter = Splitter(max_line_bytes=max_line_bytes, offset=offset, number=number)
    for chunk in chunks:
        yield from splitter.feed(chunk)
    yield from splitter.close()
