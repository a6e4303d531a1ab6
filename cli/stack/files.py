"""Files that are whole whenever somebody reads them."""

import os
import tempfile
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """The file holds exactly this text, readable by its owner alone; a reader never sees half of it."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
