"""The documents that a command line names: files as they are, and folders with all below them."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUFFIXES: Final = frozenset(
    {".txt", ".text", ".rst", ".md", ".markdown", ".html", ".htm", ".xhtml", ".pdf"}
    | {".docx", ".pptx", ".xlsx", ".epub", ".eml"}
)

NOTHING: Final = f"there is no document; folders give {' '.join(sorted(SUFFIXES))}"


@dataclass(frozen=True, slots=True)
class Source:
    """A file to summarize.

    Attributes:
        path: opens it.
        shown: as the caller named it, or the folder that holds it; always text that can be printed.
        name: below the folder that all of a command's files have in common; names what is written of it.
    """

    path: Path
    shown: str
    name: Path


def find(
    paths: Sequence[str], *, left_out: Path | None = None, others: Counter[str] | None = None
) -> Iterator[Source]:
    """Every file once, in the order of the paths, and folders in the order of their names.

    Folders give files with a known suffix and no hidden ones; a file that was named itself is always given.
    The folder `left_out` is not looked into: what is written there must not be read again.
    `others` counts the files of folders that are of other kinds, by their suffix.
    """
    roots = [absolute(path) for path in paths]
    base = _common(roots)
    seen: set[Path] = set()
    excluded = absolute(str(left_out)) if left_out else None
    for given, root in zip(paths, roots, strict=True):
        for below in _below(root, excluded, others) if root.is_dir() else [None]:
            path = root / below if below else root
            if len(paths) > 1:  # one path alone names no file twice
                if path in seen:
                    continue
                seen.add(path)
            shown = f"{given.rstrip('/')}/{below}" if below else given
            yield Source(path, printable(shown), path.relative_to(base))


def printable(text: str) -> str:
    """The name of a file as text; bytes that are no UTF-8 are replaced."""
    return os.fsencode(text).decode(errors="replace")


def absolute(path: str) -> Path:
    """The path from the root on, links as they are: a link has its own name, and its folder."""
    return Path(os.path.abspath(path))  # noqa: PTH100  # Path.resolve follows links


def is_there(path: str) -> bool:
    """Whether there is such a file or folder; one that cannot be looked at may be."""
    try:
        absolute(path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def is_same(path: Path, other: Path | None) -> bool:
    """Whether both are one file or folder, also where one of them is or goes through a link."""
    if other is None or path == other:
        return path == other
    try:
        return path.samefile(other)
    except OSError:
        return False


def _common(roots: Sequence[Path]) -> Path:
    """The folder below which all files are."""
    return Path(os.path.commonpath([root if root.is_dir() else root.parent for root in roots]))


def _below(folder: Path, left_out: Path | None, others: Counter[str] | None) -> Iterator[Path]:
    """The files below the folder, as paths that start at it."""
    for where, folders, files in os.walk(folder):
        here = Path(where)
        folders[:] = sorted(
            each for each in folders if not each.startswith(".") and not is_same(here / each, left_out)
        )
        for file in sorted(files):
            path = here / file
            if file.startswith(".") or not path.is_file():
                continue
            if path.suffix.lower() in SUFFIXES:
                yield path.relative_to(folder)
            elif others is not None:
                others[printable(path.suffix.lower()) or "without a suffix"] += 1
