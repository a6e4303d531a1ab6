"""One log file per process of the stack."""

import os
from pathlib import Path
from typing import BinaryIO

_KEPT = 3  # logs of earlier runs
_TAIL_BYTES = 8192


def open_log(log: Path) -> BinaryIO:
    """Open the log for appending, readable by its owner alone."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")


def rotate(log: Path) -> None:
    """Rename the log to `NAME.1`, an older one to `NAME.2`, and so on up to three."""
    for number in range(_KEPT, 0, -1):
        older = log.with_name(f"{log.name}.{number - 1}") if number > 1 else log
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number}"))


def log_tail(log: Path, num_lines: int = 12) -> str:
    """Return the log's path and its last lines, to append to an error message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-num_lines:]
    except OSError:
        return ""
    return "\n".join(["", f"The end of {log}:", *(f"  {line}" for line in lines)])
