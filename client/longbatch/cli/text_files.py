"""The text files that options of commands name."""

from pathlib import Path
from typing import Final

import typer

_MAX_BYTES: Final = 1_000_000  # far above what a server takes; a document named by mistake is larger


def read_text(file: Path, *, param: str) -> str:
    """Read a file that an option names.

    Raises:
        typer.BadParameter: it cannot be read, is too large, or is not UTF-8.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint=param) from None
    if len(content) > _MAX_BYTES:
        raise typer.BadParameter(f"{file} is larger than {_MAX_BYTES:,} bytes", param_hint=param)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not UTF-8", param_hint=param) from None
