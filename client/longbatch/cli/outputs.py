"""Where results go: to standard output in the order of the files, or into a folder, one file each."""

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final, Protocol

from longbatch.cli import output, result_files
from longbatch.cli.result_files import Format, Link
from longbatch.documents.results import DocumentResult
from longbatch.documents.sources import SourceFile
from longbatch.whole_files import shared_mode, write_whole

_ERROR_SUFFIX: Final = ".error.json"
_COMBINED: Final = "summary"
# Of the file systems in use; while a file is written, its name has a few characters more.
_MAX_NAME_BYTES: Final = 240
_HASH_CHARS: Final = 16


Fetches = Sequence[Callable[[], DocumentResult]]


class ResultWriter(Protocol):
    """A destination for results in any order."""

    def take(self, place: int, fetches: Fetches) -> bool:
        """Write the results of the file at this place, now or when its turn comes.

        Args:
            place: index of the file, from 0.
            fetches: return the results of the file and of those attached to it; each is called at most
                once, so a waiting result takes no memory.

        Returns:
            False if one cannot be written.
        """

    def close(self) -> None:
        """Complete the output, even if results are missing."""


class StdoutWriter:
    """An output that prints the results in the order of their places.

    Args:
        aside: hides the progress bars on the terminal while a result is printed.
    """

    def __init__(self, kind: Format, aside: Callable[[], AbstractContextManager[None]]) -> None:
        self._kind = kind
        self._aside = aside if sys.stdout.isatty() else nullcontext
        self._waiting: dict[int, Fetches] = {}
        self._next = 0
        self._num_printed = 0
        sys.stdout.write(result_files.heading(kind))

    def take(self, place: int, fetches: Fetches) -> bool:
        """Print the results as soon as all before them are printed."""
        self._waiting[place] = fetches
        while self._next in self._waiting:
            self._print(self._waiting.pop(self._next))
            self._next += 1
        return True

    def close(self) -> None:
        """Print the results that wait for missing ones, and end the list."""
        for place in sorted(self._waiting):
            self._print(self._waiting.pop(place))
        sys.stdout.write(result_files.ending(self._kind, num_results=self._num_printed))
        sys.stdout.flush()

    def _print(self, fetches: Fetches) -> None:
        for fetch in fetches:
            result = fetch()
            with self._aside():
                sys.stdout.write(result_files.one_of_many(result, self._kind, place=self._num_printed))
                sys.stdout.flush()
            self._num_printed += 1


class ResultFolder(Protocol):
    """A folder of results: on this machine, or in object storage."""

    def write(self, place: Path, text: str) -> None:
        """Write a file at this place below the folder, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """

    def delete(self, place: Path) -> None:
        """Delete the file at this place, if there is one.

        Raises:
            OSError: it cannot be deleted.
        """

    def link(self, source: SourceFile, place: Path) -> str:
        """Return the way from the result at this place to its source."""


class LocalFolder:
    """A folder of results on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, place: Path, text: str) -> None:
        """Write the file; see `ResultFolder`."""
        write_shared(self._path / place, text)

    def delete(self, place: Path) -> None:
        """Delete the file; see `ResultFolder`."""
        (self._path / place).unlink(missing_ok=True)

    def link(self, source: SourceFile, place: Path) -> str:
        """Return the relative path of a file, the address of another source."""
        return source.link_from((self._path / place).parent)


class FolderWriter:
    """An output that writes each result to a file, in the same subfolder as its source, under its name."""

    def __init__(self, folder: ResultFolder, kind: Format) -> None:
        self._folder = folder
        self._kind = kind

    def take(self, place: int, fetches: Fetches) -> bool:  # noqa: ARG002  # each has its own file
        """Write the results' files and delete contrary ones of an earlier run."""
        is_written = True
        for fetch in fetches:
            result = fetch()
            try:
                self.write(result)
            except OSError as error:
                output.print_error(f"cannot write the result of {result.source.shown}: {error}")
                is_written = False
        return is_written

    def close(self) -> None:
        """Do nothing: every result is already written."""

    def write(self, result: DocumentResult) -> Path:
        """Write the result and return where, below the folder, it stands.

        Raises:
            OSError: the file cannot be written.
        """
        good, bad = self.places(result.source)
        place, stale, kind = (good, bad, self._kind) if result.error is None else (bad, good, Format.JSON)
        self._folder.write(place, result_files.alone(result, kind, self._linking_from(place)))
        if stale != place:
            self._folder.delete(stale)
        return place

    def write_combined(self, results: list[DocumentResult]) -> None:
        """Write the one file of results that share a summary.

        Raises:
            OSError: the file cannot be written.
        """
        place = self.combined_place
        text = result_files.combined(results, self._kind, self._linking_from(place))
        self._folder.write(place, text)

    @property
    def combined_place(self) -> Path:
        """Where, below the folder, the file for results that share a summary stands."""
        return Path(f"{_COMBINED}.{self._kind}")

    def places(self, source: SourceFile) -> tuple[Path, Path]:
        """Return where, below the folder, the document's summary and its failure file stand."""
        good = _beside(source, f".{self._kind}")
        # In JSON a failure has the shape of any result; in other formats it must not look like a summary.
        return good, good if self._kind is Format.JSON else _beside(source, _ERROR_SUFFIX)

    def _linking_from(self, place: Path) -> Link:
        return lambda source: self._folder.link(source, place)


def _beside(source: SourceFile, suffix: str) -> Path:
    """Return the place of a file named after the document.

    A name that is too long for a file system is cut, and ends in a hash of the whole: the same in every run,
    and no other document's.
    """
    name = os.fsencode(source.name.name)
    most = _MAX_NAME_BYTES - len(_ERROR_SUFFIX)
    if len(name) > most:
        digest = hashlib.sha256(name).hexdigest()[:_HASH_CHARS]
        kept = name[: most - _HASH_CHARS - 1].decode(errors="ignore")
        return source.name.parent / f"{kept}~{digest}{suffix}"
    return source.name.parent / (source.name.name + suffix)


def write_shared(path: Path, text: str) -> None:
    """Write the text to the file at once, readable as the process's umask says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text, mode=shared_mode())
