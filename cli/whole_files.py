"""Files that are written whole: a reader never sees half of one."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write the text to the file atomically, with these permissions."""
    prefix = f".{path.name[:40]}."  # of at most 160 bytes, far below what a name may have
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
