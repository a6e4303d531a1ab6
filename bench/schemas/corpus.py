"""Schemas to ask answers by: those of the JSON Schema test suite, and ones as callers' classes make them."""

import json
import random
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# Within the source of the package jsonschema: the suite's required tests of the newest draft.
_FOLDER: Final = "/json/tests/draft2020-12/"
_OPTIONAL: Final = "/optional/"
_FORMATS: Final = ("date", "time", "date-time", "uuid", "email", "ipv4")
_MAX_DEPTH: Final = 3
_WORDS: Final = (
    "title",
    "year",
    "tags",
    "author",
    "size",
    "price",
    "open",
    "city",
    "colour",
    "parts",
    "note",
    "rank",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A schema to ask an answer by.

    Attributes:
        name: where it comes from.
        schema: as a caller sends it.
        is_satisfiable: some JSON is known to be valid.
    """

    name: str
    schema: dict[str, Any]
    is_satisfiable: bool


def published(archive: Path) -> list[Case]:
    """Read the suite's schemas, each once, from the source archive of jsonschema. Booleans are left out."""
    found: dict[str, Case] = {}
    with tarfile.open(archive) as files:
        names = sorted(name for name in files.getnames() if name.endswith(".json"))
        for name in names:
            if _FOLDER not in name or _OPTIONAL in name or (file := files.extractfile(name)) is None:
                continue
            for group in json.load(file):
                schema = group["schema"]
                if isinstance(schema, dict):
                    is_satisfiable = any(test["valid"] for test in group["tests"])
                    title = f"{Path(name).stem}: {group['description']}"
                    found.setdefault(json.dumps(schema), Case(title, schema, is_satisfiable))
    return list(found.values())


def generated(number: int, *, seed: int) -> Iterator[Case]:
    """Make objects of nested, optional and bounded parts, as the libraries of typed clients write them."""
    chosen = random.Random(seed)  # noqa: S311  # no secret
    for at in range(number):
        schema = _object(chosen, depth=0)
        if chosen.random() < 0.3:
            schema = {
                "$defs": {"Part": schema},
                "type": "object",
                "properties": {
                    "first": {"$ref": "#/$defs/Part"},
                    "others": {"type": "array", "items": {"$ref": "#/$defs/Part"}, "maxItems": 2},
                },
                "required": ["first"],
            }
        yield Case(f"generated {at}", schema, is_satisfiable=True)


def _object(chosen: random.Random, *, depth: int) -> dict[str, Any]:
    names = chosen.sample(_WORDS, chosen.randint(1, 5 - depth))
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: _value(chosen, depth=depth + 1) for name in names},
        "required": [name for name in names if chosen.random() < 0.7],
    }
    if chosen.random() < 0.5:
        found["additionalProperties"] = False
    return found


def _value(chosen: random.Random, *, depth: int) -> dict[str, Any]:
    makers = (_text, _text, _short, _dated, _integer, _number, _flag, _choice, _optional)
    if depth < _MAX_DEPTH and chosen.random() < 0.25:
        return _list(chosen, depth=depth) if chosen.random() < 0.5 else _object(chosen, depth=depth)
    return chosen.choice(makers)(chosen)


def _list(chosen: random.Random, *, depth: int) -> dict[str, Any]:
    return {"type": "array", "items": _value(chosen, depth=depth + 1), "maxItems": chosen.randint(1, 4)}


def _text(_: random.Random) -> dict[str, Any]:
    return {"type": "string"}


def _short(chosen: random.Random) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": chosen.randint(4, 40)}


def _dated(chosen: random.Random) -> dict[str, Any]:
    return {"type": "string", "format": chosen.choice(_FORMATS)}


def _integer(chosen: random.Random) -> dict[str, Any]:
    return {"type": "integer", "minimum": chosen.randint(-9, 9), "maximum": chosen.randint(10, 9999)}


def _number(_: random.Random) -> dict[str, Any]:
    return {"type": "number", "exclusiveMinimum": 0}


def _flag(_: random.Random) -> dict[str, Any]:
    return {"type": "boolean"}


def _choice(chosen: random.Random) -> dict[str, Any]:
    return {"enum": chosen.sample(_WORDS, 3)}


def _optional(_: random.Random) -> dict[str, Any]:
    return {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
