"""Where the bytes of files are kept: one interface, behind it Postgres, a directory or object storage."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

import zstandard

from jobs.errors import LongbatchError, UnavailableError
from jobs.ids import uuid7

# A file's bytes are cut into parts of this size: one is held in memory at a time.
PART_BYTES: Final = 2**20
_LEVEL: Final = 1  # 300 MB/s on one core, JSON shrinks to a third; higher levels gain little
# Names the database whose parts these are: no other sweeps what it does not know.
OWNER_NAME: Final = "owner"
# By the last two of a key's random digits: those of the time would fill one folder after the other, and
# object storage spreads its load by the beginning of a name.
FOLDERS: Final = tuple(f"{number:02x}" for number in range(256))
LISTED_AT_ONCE: Final = 1000


class BytesLostError(LongbatchError):
    """A part of a file is not where it was put."""

    code = "file_bytes_lost"


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Some bytes of a file, put away.

    Attributes:
        num_bytes: how many, uncompressed.
        content: compressed, if the row itself keeps them.
        key: where the store finds them otherwise.
    """

    num_bytes: int
    content: bytes | None = None
    key: str | None = None


class PartStore(Protocol):
    """Keeps parts that are never changed. Its calls block; none of them needs the database.

    A part is put before the transaction that names it, and dropped before the one that forgets it: whatever
    is cut off between leaves at most a part that nobody knows, which `stray_parts` removes.
    """

    def put(self, raw: bytes) -> StoredPart:
        """The bytes are safe once the row of this part is committed."""

    def get(self, part: StoredPart) -> bytes:
        """The bytes of a part.

        Raises:
            BytesLostError: they are gone.
        """

    def drop(self, keys: Sequence[str]) -> None:
        """These parts are gone; those that were gone before are no error."""

    def list_keys(self, folder: str) -> Iterator[list[str]]:
        """List the keys of one of FOLDERS, up to LISTED_AT_ONCE in a piece."""

    def owner(self) -> str | None:
        """Name the database whose parts these are; None: none has claimed them."""

    def claim(self, owner: str) -> None:
        """Let these be the parts of this database. Of several that do so at once one is believed later."""


class RowStore:
    """Parts in their own rows: nothing beside Postgres to run or to back up."""

    def put(self, raw: bytes) -> StoredPart:
        """Compressed, for the row to take along."""
        return StoredPart(len(raw), content=pack(raw))

    def get(self, part: StoredPart) -> bytes:
        """As `PartStore.get`."""
        if part.content is None:
            raise BytesLostError(
                "A part was stored in a directory, but LONGBATCH_FILES__DIRECTORY is not set."
            )
        return unpack(part.content)

    def drop(self, keys: Sequence[str]) -> None:
        """Rows go by themselves."""

    def list_keys(self, folder: str) -> Iterator[list[str]]:  # noqa: ARG002  # as of every store
        """List none: a part is never without its row."""
        return iter(())

    def owner(self) -> str | None:
        """Name none: rows are nobody else's."""
        return None

    def claim(self, owner: str) -> None:
        """Do nothing."""


class DirectoryStore(RowStore):
    """Parts as files of a directory that the API and all service workers share."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._durable: set[Path] = set()  # folders that a loss of power leaves

    def put(self, raw: bytes) -> StoredPart:
        """Compressed, on the disk, and so is its name."""
        key = uuid7().hex
        self._write(self._path(key), pack(raw))
        return StoredPart(len(raw), key=key)

    def get(self, part: StoredPart) -> bytes:
        """As `PartStore.get`; parts that were stored in rows before are found there."""
        if part.key is None:
            return super().get(part)
        try:
            return unpack(self._path(part.key).read_bytes())
        except FileNotFoundError as error:
            raise BytesLostError from error
        except OSError as error:  # too many open files, a mount that is away: not lost
            raise UnavailableError("The file's bytes cannot be read at the moment.") from error

    def drop(self, keys: Sequence[str]) -> None:
        """The files are unlinked."""
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def list_keys(self, folder: str) -> Iterator[list[str]]:
        """As `PartStore.list_keys`."""
        with suppress(FileNotFoundError), os.scandir(self._root / folder) as entries:
            names = (entry.name.removesuffix(".zst") for entry in entries if entry.name.endswith(".zst"))
            while piece := list(islice(names, LISTED_AT_ONCE)):
                yield piece

    def owner(self) -> str | None:
        """As `PartStore.owner`."""
        try:
            return (self._root / OWNER_NAME).read_text()
        except FileNotFoundError:
            return None

    def claim(self, owner: str) -> None:
        """As `PartStore.claim`."""
        with suppress(FileExistsError):
            self._write(self._root / OWNER_NAME, owner.encode())

    def _path(self, key: str) -> Path:
        return self._root / key[-2:] / f"{key}.zst"

    def _write(self, path: Path, content: bytes) -> None:
        """Make a file that outlives a loss of power: its bytes are on the disk, and then its name."""
        self._ensure(path.parent)
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _sync_names(path.parent)

    def _ensure(self, folder: Path) -> None:
        """Make a folder whose own name, and those of the folders above it that were made, are on the disk."""
        if folder in self._durable:
            return
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        # The root's too: another process may have made it just now, and this one rely on it first.
        for each in {self._root, folder, *made}:
            with suppress(PermissionError):  # above what is ours, so it was there before
                _sync_names(each.parent)
        self._durable.add(folder)


def _sync_names(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def pack(raw: bytes) -> bytes:
    """Compressed, as every store keeps it."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(raw)


def unpack(packed: bytes) -> bytes:
    """What `pack` was given."""
    return zstandard.ZstdDecompressor().decompress(packed)
