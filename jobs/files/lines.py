"""Split a chunked file into lines: hold one at a time, and remember where the next one starts."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileLine:
    """A line of a file.

    Attributes:
        number: counted from 1, empty lines included.
        content: without its line feed; None: the line exceeds the limit.
        end: offset in the file just after its line feed.
    """

    number: int
    content: bytes | None
    end: int

    @property
    def is_blank(self) -> bool:
        """Return True if the line has nothing to read."""
        return self.content is not None and not self.content.strip()


class Splitter:
    """Splits chunks into lines; the first chunk starts with line `number` at `offset`."""

    def __init__(self, *, max_line_bytes: int, offset: int = 0, number: int = 1) -> None:
        self._max_line_bytes = max_line_bytes
        self._offset = offset
        self._number = number
        self._pending = bytearray()
        self._is_skipping = False

    def feed(self, chunk: bytes) -> Iterator[FileLine]:
        """Yield the lines that end in this chunk."""
        *whole, rest = chunk.split(b"\n")
        for fragment in whole:
            self._offset += 1
            self._append(fragment)
            yield self._line()
        self._append(rest)

    def close(self) -> Iterator[FileLine]:
        """Yield the last line if no line feed ends it."""
        if self._pending or self._is_skipping:
            yield self._line()

    def _append(self, fragment: bytes) -> None:
        self._offset += len(fragment)
        if self._is_skipping or len(self._pending) + len(fragment) > self._max_line_bytes:
            self._is_skipping = True
            self._pending.clear()
        else:
            self._pending += fragment

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
    """Yield the lines of chunks, the first of which starts line `number` at `offset`."""
    splitter = Splitter(max_line_bytes=max_line_bytes, offset=offset, number=number)
    for chunk in chunks:
        yield from splitter.feed(chunk)
    yield from splitter.close()
