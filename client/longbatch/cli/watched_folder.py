"""A watched folder: yields files once they stop changing, and records which ones are done."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from longbatch.documents.sources import Skipped, SourceFile
from longbatch.errors import LongbatchError

if TYPE_CHECKING:
    from typing_extensions import Self

_LEDGER: Final = ".longbatch-watch.sqlite3"
_RETRY_SECONDS: Final = 30.0  # after a failure that the file did not cause


class FolderInUseError(LongbatchError):
    """Another process writes summaries into this folder."""

    code = "folder_in_use"


class Version(NamedTuple):
    """A file's version: size and modification time.

    Attributes:
        size: bytes.
        mtime: last change of the content, in nanoseconds since the epoch.
    """

    size: int
    mtime: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A file that has stopped changing."""

    source: SourceFile
    version: Version


class Ledger:
    """The record, in the folder of the results, of which file version is done with which options.

    A context manager. While it is open, no other process can open it.

    Raises:
        FolderInUseError: another process has it open.
    """

    def __init__(self, folder: Path, *, options: str) -> None:
        self._options = options
        self._lock = Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(
            folder / _LEDGER, timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS done"
                " (name TEXT PRIMARY KEY, size INTEGER, mtime INTEGER, options TEXT) WITHOUT ROWID"
            )
            self._database.execute("BEGIN EXCLUSIVE")  # locks even without a write
            self._database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            self._database.close()
            raise FolderInUseError(f"another process writes to {folder} ({error})") from error

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._database.close()

    def is_done(self, arrival: Arrival) -> bool:
        """Return True if exactly this version has its result."""
        with self._lock:
            row = self._database.execute(
                "SELECT 1 FROM done WHERE (name, size, mtime, options) = (?, ?, ?, ?)", self._row(arrival)
            ).fetchone()
        return row is not None

    def note(self, arrival: Arrival) -> None:
        """Record that the file's result is written."""
        with self._lock:
            self._database.execute("INSERT OR REPLACE INTO done VALUES (?, ?, ?, ?)", self._row(arrival))

    def forget_missing(self, folder: Path) -> None:
        """Delete the records of files that no longer exist."""
        with self._lock:
            names = [name for (name,) in self._database.execute("SELECT name FROM done")]
            missing = [(name,) for name in names if not (folder / name).exists()]
            self._database.executemany("DELETE FROM done WHERE name = ?", missing)

    def _row(self, arrival: Arrival) -> tuple[str, int, int, str]:
        name = str(arrival.source.name).encode(errors="surrogateescape").decode(errors="backslashreplace")
        return (name, *arrival.version, self._options)


class FolderWatcher:
    """The files of a folder that are not done.

    Args:
        find: finds the documents of the folder, and takes down in `skipped` what else it holds.
        report: is called with what was skipped and not reported yet.
        settle: seconds for which a file's size and time must not change before it is yielded.
        poll: seconds between two scans.
    """

    def __init__(
        self,
        find: Callable[..., Iterator[SourceFile]],
        ledger: Ledger,
        *,
        report: Callable[[Skipped], object],
        settle: float,
        poll: float,
        stop: Event,
    ) -> None:
        self._find = find
        self._ledger = ledger
        self._report = report
        self._settle = settle
        self._poll = poll
        self._stop = stop
        self._lock = Lock()
        self._seen: dict[Path, tuple[Version, float]] = {}  # the version, and when it was first seen
        self._taken: set[Path] = set()
        self._not_before: dict[Path, float] = {}
        self._reported: set[str] = set()

    def arrivals(self, *, until: Callable[[bool], bool]) -> Iterator[Arrival]:
        """Yield each settled file once, and again only after `end` reports it as not done.

        Calls `until` after every scan, with True if no work is left, and ends when it returns True.
        """
        while not self._stop.is_set():
            is_idle = True
            for arrival, is_ready in self._scan(time.monotonic()):
                is_idle = False
                if is_ready:
                    yield arrival
            if until(is_idle and not self._taken):
                return
            self._stop.wait(self._poll)

    def end(self, arrival: Arrival, *, is_done: bool) -> None:
        """Record the file as done; otherwise yield it again after a while."""
        path = arrival.source.path
        if is_done:
            self._ledger.note(arrival)
        with self._lock:
            self._not_before.pop(path, None)
            if not is_done:
                self._not_before[path] = time.monotonic() + _RETRY_SECONDS
            self._taken.discard(path)

    def _scan(self, now: float) -> Iterator[tuple[Arrival, bool]]:
        """Yield each file that is neither done nor taken; take it if it is ready."""
        before, self._seen = self._seen, {}
        skipped = Skipped()
        for source in self._find(skipped=skipped):
            with suppress(OSError):  # a file may vanish at any time
                status = source.path.stat()
                arrival = Arrival(source, Version(status.st_size, status.st_mtime_ns))
                if source.path in self._taken or self._ledger.is_done(arrival):
                    continue
                version, since = before.get(source.path, (None, now))
                since = since if version == arrival.version else now
                self._seen[source.path] = (arrival.version, since)
                is_due = self._not_before.get(source.path, now) <= now
                is_ready = now - since >= self._settle and is_due
                if is_ready:
                    with self._lock:
                        self._taken.add(source.path)
                yield arrival, is_ready
        links, broken = set(skipped.links), set(skipped.broken)
        if (links | broken) - self._reported:
            new = Skipped(links=sorted(links - self._reported), broken=sorted(broken - self._reported))
            self._report(new)
        self._reported = links | broken
