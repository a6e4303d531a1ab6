"""The file of a caller's own template: TOML, a text for each part."""

import sys
from pathlib import Path
from typing import Final

import typer

from longbatch.cli.text_files import read_text

_PARAM: Final = "--template"


def read_template(file: Path) -> dict[str, str]:
    """Read the parts of a template by name; the server checks which there are, and their placeholders.

    Raises:
        typer.BadParameter: the file cannot be read, or holds anything but texts.
    """
    if sys.version_info < (3, 11):
        raise typer.BadParameter("templates need Python 3.11 or newer", param_hint=_PARAM)
    import tomllib

    try:
        found = tomllib.loads(read_text(file, param=_PARAM))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise typer.BadParameter(f"{file} is not TOML: {error}", param_hint=_PARAM) from None
    parts = {name: text for name, text in found.items() if isinstance(text, str)}
    if not parts or len(parts) < len(found):
        message = f'{file} must have nothing but texts, such as whole = "…"'
        raise typer.BadParameter(message, param_hint=_PARAM)
    return parts
