"""Where the bytes of files are kept: one interface, behind it Postgres, a directory or object storage."""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import zstandard

from jobs.errors import LongbatchError
from jobs.ids import uuid7
from jobs.settings import FileSettings

# A file's bytes are cut into parts of this size: one is held in memory at a time.
PART_BYTES: Final = 2**20
_LEVEL: Final = 1  # 300 MB/s on one core, JSON shrinks to a third; higher levels gain little


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

    A part is put before the transaction that names it, and dropped after the one that forgot it: whatever is
    cut off between leaves at most a part that nobody knows.
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


class DirectoryStore(RowStore):
    """Parts as files of a directory that the API and all service workers share."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, raw: bytes) -> StoredPart:
        """Compressed, on the disk."""
        key = uuid7().hex
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(pack(raw))
            file.flush()
            os.fsync(file.fileno())
        return StoredPart(len(raw), key=key)

    def get(self, part: StoredPart) -> bytes:
        """As `PartStore.get`; parts that were stored in rows before are found there."""
        if part.key is None:
            return super().get(part)
        try:
            return unpack(self._path(part.key).read_bytes())
        except OSError as error:
            raise BytesLostError from error

    def drop(self, keys: Sequence[str]) -> None:
        """The files are unlinked."""
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        # By the random digits: those of the time would fill one folder after the other.
        return self._root / key[-2:] / f"{key}.zst"


def make_store(settings: FileSettings) -> PartStore:
    """The store that is configured."""
    return _make_store(settings.directory, settings.url)


@functools.cache
def _make_store(directory: str | None, url: str | None) -> PartStore:
    if url is not None:
        from jobs.object_storage import ObjectStore

        return ObjectStore(url)
    return DirectoryStore(Path(directory)) if directory is not None else RowStore()


def pack(raw: bytes) -> bytes:
    """Compressed, as every store keeps it."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(raw)


def unpack(packed: bytes) -> bytes:
    """What `pack` was given."""
    return zstandard.ZstdDecompressor().decompress(packed)
