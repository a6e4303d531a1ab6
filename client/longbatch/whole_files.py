"""Files that are written whole: a reader never sees half of one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def write_whole(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write the text to the file atomically, with these permissions."""
    with writing_whole(path, mode=mode) as file:
        file.write(text)


@contextmanager
def writing_whole(path: Path, *, mode: int = 0o600) -> Iterator[TextIO]:
    """Open a file that takes the place of this one after the block, unless the block fails."""
    prefix = f".{path.name[:40]}."  # of at most 160 bytes, far below what a name may have
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def shared_mode() -> int:
    """Return the permissions of a file that is readable as the process's umask says.

    Reading it is only possible by setting it for an instant.
    """
    found = os.umask(0o077)
    os.umask(found)
    return 0o666 & ~found
