"""The documents that a command line names: files as given, and folders with all files below them."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

SUFFIXES: Final = frozenset(
    {".txt", ".text", ".rst", ".md", ".markdown", ".html", ".htm", ".xhtml", ".pdf"}
    | {".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".xml", ".yaml", ".yml", ".log"}
    | {".srt", ".vtt", ".tex", ".adoc", ".org", ".toml", ".ini", ".cfg", ".conf"}
    | {".docx", ".docm", ".dotx", ".dotm", ".pptx", ".pptm", ".ppsx", ".ppsm", ".potx", ".potm"}
    | {".xlsx", ".xlsm", ".xltx", ".xltm", ".xlsb", ".xls", ".odt", ".ott", ".ods", ".ots", ".odp", ".otp"}
    | {".odg", ".rtf", ".epub", ".eml", ".mbox", ".mht", ".mhtml", ".msg"}
)

# Left by programs while a document is open, and by file managers.
_NO_DOCUMENTS: Final = re.compile(r"~\$.*|\.~lock\..*#|\._.*|Thumbs\.db|desktop\.ini", re.IGNORECASE)

NOTHING: Final = f"found no documents; folders are searched for {' '.join(sorted(SUFFIXES))}"


@dataclass(slots=True)
class Skipped:
    """What folders hold besides the documents that a command reads.

    Attributes:
        kinds: files of other kinds, counted by their suffix.
        links: symbolic links that lead out of their folder, as the caller gave it.
        broken: symbolic links that lead to nothing, or in a circle.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    links: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return it for programs."""
        return {"kinds": self.kinds, "links": self.links, "broken_links": self.broken}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to summarize.

    Attributes:
        path: absolute path to open.
        shown: path as the caller gave it, or gave its folder; always printable text.
        name: path relative to the folder that all of a command's files share; the result's file is named
            after it.
        version: names the content, where that is known without reading it.
        num_bytes: its size when it was found; not part of what it is.
    """

    path: Path
    shown: str
    name: Path
    version: str | None = None
    num_bytes: int = field(default=0, compare=False)

    def within(self, name: str) -> "SourceFile":
        """Return a file within this one, whose results lie in a folder of this file's name.

        Args:
            name: its name; no path.
        """
        return replace(self, shown=f"{self.shown}/{printable(name)}", name=self.name / name)

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


@dataclass(slots=True)
class Survey:
    """What the documents of a run come to.

    Attributes:
        shortest: the first of those with the fewest bytes; None if all are empty.
    """

    num_documents: int = 0
    num_bytes: int = 0
    shortest: SourceFile | None = None

    def add(self, source: SourceFile) -> None:
        """Count a document."""
        self.num_documents += 1
        self.num_bytes += source.num_bytes
        if source.num_bytes and (self.shortest is None or source.num_bytes < self.shortest.num_bytes):
            self.shortest = source

    def ordered(self, found: Iterable[SourceFile]) -> Iterator[tuple[int, SourceFile]]:
        """Yield the documents with their places, the shortest one first."""
        # It is looked for again, as its place may have changed since.
        places = enumerate(found)
        before = list[tuple[int, SourceFile]]()
        for place, source in places:
            if self.shortest is None or source == self.shortest:
                yield place, source
                break
            before.append((place, source))
        else:
            self.shortest = None  # it is gone: no document waits for it
        yield from before
        yield from places


def find(
    paths: Sequence[str],
    *,
    left_out: Path | None = None,
    skipped: Skipped | None = None,
    follow_links: bool = False,
) -> Iterator[SourceFile]:
    """Yield every file once, in the order of the paths; in folders, by name.

    Folders yield files with a known suffix, but no hidden ones; a file named itself is always yielded.

    Args:
        paths: files and folders; one that is a link itself is followed.
        left_out: a folder to skip, because results written there must not become sources.
        skipped: takes down what folders hold besides.
        follow_links: read what links in a folder lead to outside of it.
    """
    skipped = skipped or Skipped()
    roots = [absolute(path) for path in paths]
    base = _common(roots)
    seen: set[Path] = set()
    excluded = absolute(str(left_out)) if left_out else None
    for given, root in zip(paths, roots, strict=True):
        inside = Path(os.path.realpath(root))
        search = _FolderSearch(root, given, inside, excluded, skipped, follow_links)
        for below in search.documents() if root.is_dir() else [None]:
            path = root / below if below else root
            if len(paths) > 1:  # a single path names no file twice
                if path in seen:
                    continue
                seen.add(path)
            shown = _shown(given, below) if below else printable(given)
            yield SourceFile(path, shown, path.relative_to(base), num_bytes=_num_bytes(path))


def _num_bytes(path: Path) -> int:
    """Return the file's size; 0 if there is none to read, which is found out later."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def suffix_of(name: str) -> str:
    """Return the suffix of a file's name in lower case, with its dot; empty if it has none."""
    return printable(os.path.splitext(name)[1].lower())  # noqa: PTH122  # a key is no path


def is_leftover(name: str) -> bool:
    """Return True if the file is hidden, or what a program left beside documents."""
    return name.startswith(".") or _NO_DOCUMENTS.fullmatch(name) is not None


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


@dataclass(frozen=True, slots=True)
class _FolderSearch:
    """A search of one folder.

    Attributes:
        folder: where it begins.
        given: the folder as the caller gave it.
        inside: the folder without links in its path: what a link leads to is below it, or outside.
        left_out: as `find` takes it, like the others.
    """

    folder: Path
    given: str
    inside: Path
    left_out: Path | None
    skipped: Skipped
    follow_links: bool

    def documents(self) -> Iterator[Path]:
        """Yield the documents, relative to the folder."""
        walked = set[str]()
        for where, folders, files in os.walk(self.folder, followlinks=self.follow_links):
            here = Path(where)
            if self.follow_links:  # many ways may lead to a folder, and some in a circle
                real = os.path.realpath(here)
                if real in walked:
                    folders.clear()
                    continue
                walked.add(real)
            folders[:] = sorted(each for each in folders if self._is_entered(here / each))
            for file in sorted(files):
                if not is_leftover(file) and self._is_document(here / file):
                    yield (here / file).relative_to(self.folder)

    def _is_entered(self, path: Path) -> bool:
        if path.name.startswith(".") or is_same(path, self.left_out):
            return False
        # What a link within the folder leads to is found by its own path.
        return not path.is_symlink() or (not self._is_inside(path) and self._is_followed(path))

    def _is_document(self, path: Path) -> bool:
        if suffix_of(path.name) not in SUFFIXES:
            if path.is_file():
                self.skipped.kinds[suffix_of(path.name) or "without a suffix"] += 1
            return False
        if path.is_symlink():
            if not path.exists():
                self.skipped.broken.append(self._shown(path))
                return False
            if not self._is_inside(path) and not self._is_followed(path):
                return False
        return path.is_file()

    def _is_inside(self, link: Path) -> bool:
        return Path(os.path.realpath(link)).is_relative_to(self.inside)

    def _is_followed(self, link: Path) -> bool:
        if not self.follow_links:
            self.skipped.links.append(self._shown(link))
        return self.follow_links

    def _shown(self, path: Path) -> str:
        return _shown(self.given, path.relative_to(self.folder))


def _shown(given: str, below: Path) -> str:
    return printable(f"{given.rstrip('/')}/{below}")
