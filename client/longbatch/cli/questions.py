"""The questions of a command: those named, and those of a file, one a line."""

from collections.abc import Sequence
from pathlib import Path

import typer

from longbatch.cli.text_files import read_text


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
