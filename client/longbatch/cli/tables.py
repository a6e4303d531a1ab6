"""One table of what was found in many documents, written in the order of the files."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TextIO

from longbatch.documents.results import DocumentResult


class Sheet(Protocol):
    """A table of some format, begun when it is made."""

    def write(self, result: DocumentResult) -> None:
        """Write what a document has."""

    def close(self) -> None:
        """End the table."""


class OrderedTable:
    """Writes the result of each document once those of all before it are written.

    Attributes:
        num_complete: documents without a problem.
        num_warned: documents with warnings.
        num_documents: written.

    Args:
        sheet: what to write.
        problem_of: says what is wrong with the result of a document that did not fail; None: nothing.
        say: tells the caller of a problem.
        aside: hides what is shown on the same terminal while something is written.
    """

    def __init__(
        self,
        sheet: Sheet,
        *,
        problem_of: Callable[[DocumentResult], str | None],
        say: Callable[[str], None] = lambda _: None,
        aside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._sheet = sheet
        self._problem_of = problem_of
        self._say = say
        self._aside = aside
        self._waiting: dict[int, Sequence[Callable[[], DocumentResult]]] = {}
        self._next = 0
        self.num_complete = 0
        self.num_warned = 0
        self.num_documents = 0

    def take(self, place: int, fetches: Sequence[Callable[[], DocumentResult]]) -> None:
        """Write the results of the file at this place, now or when its turn comes.

        Args:
            place: index of the file, from 0.
            fetches: return the results of the file and of those attached to it; each is called once, so a
                waiting result takes no memory.
        """
        self._waiting[place] = fetches
        while self._next in self._waiting:
            self._write_each(self._waiting.pop(self._next))
            self._next += 1

    def close(self) -> None:
        """Write what waits for missing results, and end the table."""
        for place in sorted(self._waiting):
            self._write_each(self._waiting.pop(place))
        self._sheet.close()

    def _write_each(self, fetches: Sequence[Callable[[], DocumentResult]]) -> None:
        for fetch in fetches:
            self._write(fetch())

    def _write(self, result: DocumentResult) -> None:
        problem = None if result.error is not None else self._problem_of(result)
        if problem is not None:
            self._say(f"{result.source.shown}: {problem}")
        self.num_complete += result.error is None and problem is None
        self.num_warned += bool(result.warnings)
        self.num_documents += 1
        with self._aside():
            self._sheet.write(result)


class TextSheet:
    """A table of lines of text.

    Args:
        out: where to write.
        lines_of: makes the lines of a document.
        heading: goes before them.
    """

    def __init__(self, out: TextIO, lines_of: Callable[[DocumentResult], str], *, heading: str = "") -> None:
        self._out = out
        self._lines_of = lines_of
        self._out.write(heading)

    def write(self, result: DocumentResult) -> None:
        """Write the lines of a document."""
        self._out.write(self._lines_of(result))
        self._out.flush()

    def close(self) -> None:
        """Flush the file."""
        self._out.flush()


class JsonSheet:
    """A list of objects in JSON, one for each document.

    Args:
        out: where to write.
        as_object: makes the object of a document.
    """

    def __init__(self, out: TextIO, as_object: Callable[[DocumentResult], Mapping[str, object]]) -> None:
        self._out = out
        self._as_object = as_object
        self._num_written = 0
        self._out.write("[")

    def write(self, result: DocumentResult) -> None:
        """Write the object of a document."""
        written = json.dumps(self._as_object(result), indent=2, ensure_ascii=False)
        self._out.write(f"{',' if self._num_written else ''}\n{written}")
        self._out.flush()
        self._num_written += 1

    def close(self) -> None:
        """End the list."""
        self._out.write("\n]\n" if self._num_written else "]\n")
        self._out.flush()
