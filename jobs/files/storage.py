"""Where the bytes of files are kept: one interface over Postgres, a directory or object storage."""

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import zstandard

from jobs.errors import LongbatchError, StorageFullError, UnavailableError
from jobs.ids import uuid7
from jobs.sealing.content import ContentSealer

# A file's bytes are split into parts of this size; one is held in memory at a time.
PART_BYTES: Final = 2**20
_LEVEL: Final = 1  # 300 MB/s on one core, JSON shrinks to a third; higher levels gain little
# Of a part as it is stored: enough to tell which key sealed it.
HEAD_BYTES: Final = 64
# Holds the name of the database that owns the parts, so that no other database sweeps them.
OWNER_NAME: Final = "owner"
# Named by the last two random digits of a key: its leading digits are a time and would fill one folder after
# the other, and object storage spreads its load by the beginning of a name.
FOLDERS: Final = tuple(f"{number:02x}" for number in range(256))
LISTED_AT_ONCE: Final = 1000
_ELSEWHERE: Final = "A part was stored in a directory, but LONGBATCH_FILES__DIRECTORY is not set."
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class BytesLostError(LongbatchError):
    """Part of the file is missing from the file store."""

    code = "file_bytes_lost"


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A stored stretch of a file's bytes.

    Attributes:
        num_bytes: uncompressed size.
        content: the compressed bytes, if the row itself holds them.
        key: where the store finds them otherwise.
    """

    num_bytes: int
    content: bytes | None = None
    key: str | None = None

    @property
    def stored_bytes(self) -> int:
        """What it adds to what its tenant keeps; outside of the database, compression does not count."""
        return self.num_bytes if self.content is None else len(self.content)


class PartStore(Protocol):
    """Keeps immutable parts. Its calls block; none of them needs the database.

    A part is put before the transaction that names it, and dropped before the one that forgets it. An
    interruption in between leaves at most a part that no row names, which `stray_parts` removes.
    """

    def put(self, raw: bytes) -> StoredPart:
        """Store the bytes; they are durable once the row of this part is committed."""

    def get(self, part: StoredPart) -> bytes:
        """Return the bytes of a part.

        Raises:
            BytesLostError: the store no longer has them.
        """

    def drop(self, keys: Sequence[str]) -> None:
        """Delete these parts; missing ones are no error."""

    def head(self, key: str) -> bytes:
        """Return the first bytes of a part as it is stored, which name the key that sealed it.

        Raises:
            BytesLostError: the store no longer has it.
        """

    def reseal(self, key: str) -> None:
        """Seal a part as the settings say now, in its place: readers get it as it was before or after.

        The caller keeps others from dropping it meanwhile.

        Raises:
            BytesLostError: the store no longer has it.
            ContentUnreadableError: no key opens it.
        """

    def tidy(self, key: str) -> None:
        """Remove what an interrupted `reseal` left beside a part, in whatever form it was to be."""

    def list_keys(self, folder: str) -> Iterator[list[str]]:
        """List the keys of one of FOLDERS, up to LISTED_AT_ONCE at a time."""

    def owner(self) -> str | None:
        """Return the name of the database that owns these parts, or None if unclaimed."""

    def claim(self, owner: str) -> None:
        """Claim these parts for a database; `owner` then reports one of several claims."""


class RowStore:
    """Parts in their own rows: nothing but Postgres to run or to back up. The column of a row seals them."""

    def put(self, raw: bytes) -> StoredPart:
        """Compress the bytes; the row stores them."""
        return StoredPart(len(raw), content=pack(raw))

    def get(self, part: StoredPart) -> bytes:
        """Return the bytes of a part.

        Raises:
            BytesLostError: the part was stored in a directory that is no longer configured.
        """
        if part.content is None:
            raise BytesLostError(_ELSEWHERE)
        return unpack(part.content)

    def drop(self, keys: Sequence[str]) -> None:
        """Do nothing: the bytes go with their rows."""

    def head(self, key: str) -> bytes:  # noqa: ARG002  # as of every store
        """Raise BytesLostError: the part was stored in a directory that is no longer configured."""
        raise BytesLostError(_ELSEWHERE)

    def reseal(self, key: str) -> None:  # noqa: ARG002  # as of every store
        """Raise BytesLostError: the part was stored in a directory that is no longer configured."""
        raise BytesLostError(_ELSEWHERE)

    def tidy(self, key: str) -> None:
        """Do nothing: there is nothing beside a row."""

    def list_keys(self, folder: str) -> Iterator[list[str]]:  # noqa: ARG002  # as of every store
        """List nothing: a part always has its row."""
        return iter(())

    def owner(self) -> str | None:
        """Return None: rows have no other owner than their database."""
        return None

    def claim(self, owner: str) -> None:
        """Do nothing: rows need no claim."""


class DirectoryStore(RowStore):
    """Parts as files of a directory that the API and all service workers share."""

    def __init__(self, root: Path, sealer: ContentSealer | None = None) -> None:
        self._root = root
        self._sealer = sealer
        self._durable: set[Path] = set()  # folders that survive a power loss

    def put(self, raw: bytes) -> StoredPart:
        """Store the bytes, compressed and sealed; they and their file name are on the disk.

        Raises:
            StorageFullError: the disk has no room; try again.
        """
        key = uuid7().hex
        with _telling_full():
            self._write(self._path(key), sealed(pack(raw), key, self._sealer))
        return StoredPart(len(raw), key=key)

    def get(self, part: StoredPart) -> bytes:
        """Return the bytes of a part; a part stored in a row before is read from there.

        Raises:
            BytesLostError: the file does not exist.
            UnavailableError: the file cannot be read at the moment; try again.
            ContentUnreadableError: no key opens it.
        """
        if part.key is None:
            return super().get(part)
        return unpack(opened(self._read(part.key), part.key, self._sealer))

    def drop(self, keys: Sequence[str]) -> None:
        """Unlink the files; missing ones are no error."""
        for key in keys:
            for path in (self._path(key), self._new_path(key)):
                path.unlink(missing_ok=True)

    def head(self, key: str) -> bytes:
        """Return the first bytes of a part as it is stored; raise as `get` does."""
        return self._read(key, HEAD_BYTES)

    def reseal(self, key: str) -> None:
        """Seal a part as the settings say now; raise as `get` and `put` do, also while another process does.

        What an interrupted call wrote beside the part the next one overwrites, and `tidy` and `drop` remove.
        """
        packed = opened(self._read(key), key, self._sealer)
        new = self._new_path(key)
        with _telling_full(), new.open("ab") as file:
            if not _is_ours(file, new):
                raise UnavailableError("Another process writes this part anew.")
            try:
                file.truncate(0)
                file.write(sealed(packed, key, self._sealer))
                file.flush()
                os.fsync(file.fileno())
                new.replace(self._path(key))
            except OSError:
                new.unlink(missing_ok=True)  # it would take the room that is left
                raise
        _sync_names(new.parent)

    def tidy(self, key: str) -> None:
        """Remove what an interrupted `reseal` left beside a part, unless another process is writing it."""
        new = self._new_path(key)
        with suppress(FileNotFoundError), new.open("rb") as file:
            if _is_ours(file, new):
                new.unlink()

    def list_keys(self, folder: str) -> Iterator[list[str]]:
        """List the keys of one of FOLDERS, up to LISTED_AT_ONCE at a time."""
        with suppress(FileNotFoundError), os.scandir(self._root / folder) as entries:
            names = (entry.name.removesuffix(".zst") for entry in entries if entry.name.endswith(".zst"))
            while batch := list(islice(names, LISTED_AT_ONCE)):
                yield batch

    def owner(self) -> str | None:
        """Return the name of the database that owns these parts, or None if unclaimed."""
        try:
            return (self._root / OWNER_NAME).read_text()
        except FileNotFoundError:
            return None

    def claim(self, owner: str) -> None:
        """Claim these parts for a database, unless one has claimed them already."""
        with suppress(FileExistsError):
            self._write(self._root / OWNER_NAME, owner.encode())

    def _read(self, key: str, num_bytes: int = -1) -> bytes:
        try:
            with self._path(key).open("rb", buffering=0) as file:
                return file.read(num_bytes) or b""
        except FileNotFoundError as error:
            raise BytesLostError from error
        except OSError as error:  # too many open files, a mount that is away: not lost
            raise UnavailableError("The file's bytes cannot be read at the moment.") from error

    def _path(self, key: str) -> Path:
        return self._root / key[-2:] / f"{key}.zst"

    def _new_path(self, key: str) -> Path:
        return self._path(key).with_suffix(".new")

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file that survives a power loss: sync its bytes, then its name."""
        self._ensure(path.parent)
        with path.open("xb") as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                path.unlink()  # it would take the room that is left
                raise
        _sync_names(path.parent)

    def _ensure(self, folder: Path) -> None:
        """Make the folder and its missing parents, and sync their names to the disk."""
        if folder in self._durable:
            return
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        # The root's too: another process may have just made it, and this one may rely on it first.
        for each in {self._root, folder, *made}:
            with suppress(PermissionError):  # above our own folders, so it existed before
                _sync_names(each.parent)
        self._durable.add(folder)


def _is_ours(file: BinaryIO, path: Path) -> bool:
    """Lock an open file until it is closed; return False if another process has it, or has moved it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


@contextmanager
def _telling_full() -> Iterator[None]:
    """Translate a full disk.

    Raises:
        StorageFullError: the disk has no room; try again.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFullError from error
        raise


def _sync_names(folder: Path) -> None:
    """Sync the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def pack(raw: bytes) -> bytes:
    """Compress bytes the way every store keeps them."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(raw)


def unpack(packed: bytes) -> bytes:
    """Return the bytes that `pack` compressed."""
    return zstandard.ZstdDecompressor().decompress(packed)


def sealed(packed: bytes, key: str, sealer: ContentSealer | None) -> bytes:
    """Seal what a store keeps under this key, so that it is of use under no other."""
    return packed if sealer is None else sealer.seal_bytes(packed, f"file_parts.key {key}")


def opened(stored: bytes, key: str, sealer: ContentSealer | None) -> bytes:
    """Open what `sealed` made.

    Raises:
        ContentUnreadableError: no key opens it, or it was kept under another key.
    """
    return stored if sealer is None else sealer.open_bytes(stored, f"file_parts.key {key}")
