"""Where results go: to standard output in the order of the files, or into a folder, a file for each."""

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final, Protocol

from cli import output
from cli.summaries import results as summary_results
from cli.summaries.options import Format
from cli.summaries.results import Link, Result
from cli.summaries.sources import Source

_ERROR_SUFFIX: Final = ".error.json"
_COMBINED: Final = "summary"


class Output(Protocol):
    """Takes results as they come."""

    def take(self, place: int, fetch: Callable[[], Result]) -> bool:
        """The result of the file at this place is written, now or when its turn comes; False: it cannot be.

        `fetch` gives the result and is called at most once: what waits for its turn needs no memory.
        """

    def close(self) -> None:
        """What was taken is whole, also when some files are missing."""


class Printed:
    """Prints the results in the order of their places.

    Args:
        aside: keeps what else is on the terminal away while something is printed.
    """

    def __init__(self, kind: Format, aside: Callable[[], AbstractContextManager[None]]) -> None:
        self._kind = kind
        self._aside = aside if sys.stdout.isatty() else nullcontext
        self._waiting: dict[int, Callable[[], Result]] = {}
        self._next = 0
        self._num_printed = 0
        sys.stdout.write(summary_results.heading(kind))

    def take(self, place: int, fetch: Callable[[], Result]) -> bool:
        """Printed once all before it are."""
        self._waiting[place] = fetch
        while self._next in self._waiting:
            self._print(self._waiting.pop(self._next)())
            self._next += 1
        return True

    def close(self) -> None:
        """What waits for others that never came is printed too, and the list has its end."""
        for place in sorted(self._waiting):
            self._print(self._waiting.pop(place)())
        sys.stdout.write(summary_results.ending(self._kind, num_results=self._num_printed))
        sys.stdout.flush()

    def _print(self, result: Result) -> None:
        with self._aside():
            sys.stdout.write(summary_results.one_of_many(result, self._kind, place=self._num_printed))
            sys.stdout.flush()
        self._num_printed += 1


class Written:
    """Writes a file for each result below a folder, named as its source is below the sources' folder."""

    def __init__(self, folder: Path, kind: Format) -> None:
        self._folder = folder
        self._kind = kind

    def take(self, place: int, fetch: Callable[[], Result]) -> bool:  # noqa: ARG002  # each has its own file
        """Its file is whole, and none is left that said otherwise before."""
        result = fetch()
        try:
            self.write(result)
        except OSError as error:
            output.complain(f"{result.source.shown} cannot be written: {error}")
            return False
        return True

    def close(self) -> None:
        """Nothing waits."""

    def write(self, result: Result) -> Path:
        """The file of this result.

        Raises:
            OSError: it cannot be written.
        """
        good, bad = self.places(result.source)
        path, stale, kind = (good, bad, self._kind) if result.error is None else (bad, good, Format.JSON)
        write_whole(path, summary_results.alone(result, kind, _from(path.parent)))
        if stale != path:
            stale.unlink(missing_ok=True)
        return path

    def write_combined(self, results: list[Result]) -> Path:
        """The one file of results that share a summary.

        Raises:
            OSError: it cannot be written.
        """
        path = self.combined_place
        write_whole(path, summary_results.combined(results, self._kind, _from(self._folder)))
        return path

    @property
    def combined_place(self) -> Path:
        """Where results that share a summary are written."""
        return self._folder / f"{_COMBINED}.{self._kind}"

    def places(self, source: Source) -> tuple[Path, Path]:
        """Where the document's summary is written, and where the reason why there is none."""
        good = self._path(source, f".{self._kind}")
        # A failure in JSON has the shape of any result; elsewhere it must not pass for a summary.
        return good, good if self._kind is Format.JSON else self._path(source, _ERROR_SUFFIX)

    def _path(self, source: Source, suffix: str) -> Path:
        return self._folder / source.name.parent / (source.name.name + suffix)


def _from(folder: Path) -> Link:
    return lambda source: os.path.relpath(source.path, folder)


def write_whole(path: Path, text: str) -> None:
    """The file holds exactly this text; a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".longbatch-", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    """What the user keeps from others; asking sets it, for an instant."""
    found = os.umask(0o077)
    os.umask(found)
    return found
