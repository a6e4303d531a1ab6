"""One log file per process of the stack."""

import os
from pathlib import Path
from typing import BinaryIO

_KEPT = 3  # logs of earlier runs
_TAIL_BYTES = 8192


def open_log(log: Path) -> BinaryIO:
    """The log, open for appending; readable by its owner alone."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")


def rotate(log: Path) -> None:
    """The log's name is free: what it held is in `NAME.1`, and so on up to three."""
    for number in range(_KEPT, 0, -1):
        older = log.with_name(f"{log.name}.{number - 1}") if number > 1 else log
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number}"))


def log_tail(log: Path, num_lines: int = 12) -> str:
    """The log's place and its last lines, to stand behind an error message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-num_lines:]
    except OSError:
        return ""
    return "\n".join(["", f"The end of {log}:", *(f"  {line}" for line in lines)])
