"""The questions of a command: those named, and those of a file, one a line."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

_MAX_BYTES: Final = 1_000_000  # far above what a server takes; a document named by mistake is larger


def read_questions(named: Sequence[str], file: Path | None) -> list[str]:
    """List the questions in order, each once; blank lines of the file are none.

    Raises:
        typer.BadParameter: there is none, or the file cannot be read.
    """
    found = [each.strip() for each in named]
    if file is not None:
        found += [line.strip() for line in read_text(file, param="--questions").splitlines()]
    questions = list(dict.fromkeys(each for each in found if each))
    if not questions:
        raise typer.BadParameter("ask at least one question, with -q or --questions", param_hint="-q")
    return questions


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
