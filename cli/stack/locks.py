"""A lock that lets one process at a time use a directory."""

import fcntl
import os
from pathlib import Path

from cli.stack.errors import DirectoryInUseError


class DirectoryLock:
    """A lock on a directory, held until released; the kernel releases it if the process dies."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "lock"
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """True while this object holds the lock."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Acquire the lock. Safe to repeat.

        Raises:
            DirectoryInUseError: another process holds it.
        """
        if self._descriptor is not None:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            raise DirectoryInUseError(
                f"{self._path.parent} is in use by process {owner or '?'}; "
                "stop it or choose another directory with --data-dir."
            ) from error
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock. Safe to repeat."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
