"""The documents that a command line names: files as given, and folders with all files below them."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUFFIXES: Final = frozenset(
    {".txt", ".text", ".rst", ".md", ".markdown", ".html", ".htm", ".xhtml", ".pdf"}
    | {".docx", ".pptx", ".xlsx", ".xls", ".odt", ".ods", ".rtf", ".epub", ".eml", ".msg"}
)

NOTHING: Final = f"found no documents; folders are searched for {' '.join(sorted(SUFFIXES))}"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to summarize.

    Attributes:
        path: absolute path to open.
        shown: path as the caller gave it, or gave its folder; always printable text.
        name: path relative to the folder that all of a command's files share; the result's file is named
            after it.
        version: names the content, where that is known without reading it.
    """

    path: Path
    shown: str
    name: Path
    version: str | None = None

    @contextmanager
    def at_hand(self) -> Iterator[Path]:
        """Yield a path to open, valid as long as the context lasts.

        Raises:
            OSError: the document cannot be read.
        """
        yield self.path

    def link_from(self, folder: Path) -> str:
        """Return the way from the folder to the document."""
        return os.path.relpath(self.path, folder)


def find(
    paths: Sequence[str], *, left_out: Path | None = None, others: Counter[str] | None = None
) -> Iterator[SourceFile]:
    """Yield every file once, in the order of the paths; in folders, by name.

    Folders yield files with a known suffix, but no hidden ones; a file named itself is always yielded.

    Args:
        paths: files and folders.
        left_out: a folder to skip, because results written there must not become sources.
        others: counts the files of other kinds in folders, by their suffix.
    """
    roots = [absolute(path) for path in paths]
    base = _common(roots)
    seen: set[Path] = set()
    excluded = absolute(str(left_out)) if left_out else None
    for given, root in zip(paths, roots, strict=True):
        for below in _below(root, excluded, others) if root.is_dir() else [None]:
            path = root / below if below else root
            if len(paths) > 1:  # a single path names no file twice
                if path in seen:
                    continue
                seen.add(path)
            shown = f"{given.rstrip('/')}/{below}" if below else given
            yield SourceFile(path, printable(shown), path.relative_to(base))


def suffix_of(name: str) -> str:
    """Return the suffix of a file's name in lower case, with its dot; empty if it has none."""
    return printable(os.path.splitext(name)[1].lower())  # noqa: PTH122  # a key is no path


def printable(text: str) -> str:
    """Return the name of a file as text; bytes that are not UTF-8 are replaced."""
    return os.fsencode(text).decode(errors="replace")


def absolute(path: str) -> Path:
    """Make a path absolute without following links, which keep their name and folder."""
    return Path(os.path.abspath(path))  # noqa: PTH100  # Path.resolve follows links


def is_there(path: str) -> bool:
    """Return True if the file or folder exists, or if that cannot be determined."""
    try:
        absolute(path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def is_same(path: Path, other: Path | None) -> bool:
    """Return True if both are the same file or folder, even through a link."""
    if other is None or path == other:
        return path == other
    try:
        return path.samefile(other)
    except OSError:
        return False


def _common(roots: Sequence[Path]) -> Path:
    """Return the deepest folder that contains all files."""
    return Path(os.path.commonpath([root if root.is_dir() else root.parent for root in roots]))


def _below(folder: Path, left_out: Path | None, others: Counter[str] | None) -> Iterator[Path]:
    """Yield the files below the folder, relative to it."""
    for where, folders, files in os.walk(folder):
        here = Path(where)
        folders[:] = sorted(
            each for each in folders if not each.startswith(".") and not is_same(here / each, left_out)
        )
        for file in sorted(files):
            path = here / file
            if file.startswith(".") or not path.is_file():
                continue
            if suffix_of(file) in SUFFIXES:
                yield path.relative_to(folder)
            elif others is not None:
                others[suffix_of(file) or "without a suffix"] += 1
