"""A small disk: a tmpfs that this process and its children alone see, and what fills it."""

import ctypes
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_CHUNK: Final = 2**16


def isolated(*, is_root: bool) -> list[str]:
    """Return the command before one that is to see mounts of its own, and may make them."""
    user = [] if is_root else ["--user", "--map-current-user", "--keep-caps"]
    return ["unshare", *user, "--mount", "--fork", "--kill-child"]


def why_not() -> str | None:
    """Say why this user can mount nothing here; None if it can."""
    mounting = "from pathlib import Path; from bench.disk_full.room import mount; mount(Path('/mnt'), 2**20)"
    test = [*isolated(is_root=os.geteuid() == 0), sys.executable, "-c", mounting]
    try:
        done = subprocess.run(test, check=False, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def mount(folder: Path, num_bytes: int) -> None:
    """Mount a disk of this size on the folder.

    Raises:
        OSError: this process may not.
    """
    options = f"size={num_bytes},mode=711".encode()
    if _LIBC.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, options) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(folder))


class Ballast:
    """A file that takes all room on a disk."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "ballast"

    def fill(self) -> None:
        """Take what room there is; call it again for what was freed since."""
        with suppress(OSError), self._file.open("ab", buffering=0) as file:
            while file.write(bytes(_CHUNK)) == _CHUNK:
                pass
            while True:
                file.write(b"0")

    def drop(self) -> None:
        """Give the room back."""
        self._file.unlink(missing_ok=True)
