"""The schema of a command, and the rules that it names."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from longbatch.cli.text_files import read_text


def read_schema(file: Path) -> dict[str, Any]:
    """Read a JSON Schema with properties.

    Raises:
        typer.BadParameter: it cannot be read, or is none.
    """
    try:
        found = json.loads(read_text(file, param="--schema"))
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{file} is not JSON: {error}", param_hint="--schema") from None
    if not isinstance(found, dict) or not isinstance(found.get("properties"), dict):
        raise typer.BadParameter(f'{file} has no "properties"', param_hint="--schema")
    return found


def read_joins(named: Sequence[str], schema: Mapping[str, Any]) -> dict[str, str] | None:
    """Read rules as `FIELD=RULE`; None: none is named.

    Raises:
        typer.BadParameter: one is not of this form, or names no field.
    """
    found: dict[str, str] = {}
    for each in named:
        field, is_rule, rule = each.rpartition("=")
        if not is_rule or field not in schema["properties"]:
            raise typer.BadParameter(f"{each!r} is no FIELD=RULE of the schema", param_hint="--join")
        found[field] = rule
    return found or None
