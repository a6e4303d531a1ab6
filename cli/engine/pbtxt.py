"""Model configurations in protobuf's text format, as values by name; the subset that config.pbtxt uses."""

import re
from collections.abc import Iterator
from typing import Final

from cli.engine.errors import RenderError

_TOKEN: Final = re.compile(
    r"""\s+|\#[^\n]*"""
    r"""|(?P<text>"(?:[^"\\]|\\.)*")"""
    r"""|(?P<word>(?:\$\{\w+\}|[^\s{}\[\]:,;"#])+)"""
    r"""|(?P<mark>[{}\[\]:,;])"""
)
_NAMED_BY: Final = ("key", "name", "model_name")
_REPEATED: Final = frozenset({"instance_group", "step"})

Field = tuple[str, "str | list[Field]"]


def values(text: str) -> dict[str, str]:
    """Parse a text into values by path, such as `parameters.max_beam_width`.

    The path of a repeated message contains its key or name, or else its index. Booleans become `true` and
    `false`, however they are written.

    Raises:
        RenderError: the text is not in the text format.
    """
    flat = _flat(_fields(_tokens(text), is_nested=False))
    return {name.removesuffix(".value.string_value"): value for name, value in flat}


def _tokens(text: str) -> Iterator[str]:
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise RenderError(f"line {text.count(chr(10), 0, place) + 1} is not in protobuf's text format")
        place = found.end()
        if found.lastgroup in {"text", "word"} or (found.lastgroup == "mark" and found["mark"] not in ",;"):
            yield found[0]


def _fields(tokens: Iterator[str], *, is_nested: bool) -> list[Field]:
    """Parse the fields of a message, up to its closing brace."""
    fields: list[Field] = []
    for name in tokens:
        if name == "}" and is_nested:
            return fields
        if name in "{}[]:":
            raise RenderError(f"expected the name of a field, not {name}")
        part = next(tokens, "")
        if part == ":":
            part = next(tokens, "")
        fields += [(name, value) for value in _values(part, tokens)]
    if is_nested:
        raise RenderError("a closing brace is missing")
    return fields


def _values(part: str, tokens: Iterator[str]) -> Iterator["str | list[Field]"]:
    """Yield one value, or each value of a list."""
    if part == "[":
        while (part := next(tokens, "]")) != "]":
            yield from _values(part, tokens)
    elif part == "{":
        yield _fields(tokens, is_nested=True)
    elif part in {"", "}", "]", ":"}:
        raise RenderError("a value is missing")
    else:
        yield _plain(part)


def _plain(token: str) -> str:
    if token.startswith('"'):
        token = token[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return token.lower() if token in {"True", "False"} else token


def _flat(fields: list[Field], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and value of all fields; a list of plain values is one value."""
    plain: dict[str, list[str]] = {}
    seen: dict[str, int] = {}
    for name, value in fields:
        if isinstance(value, str):
            plain.setdefault(name, []).append(value)
            continue
        seen[name] = seen.get(name, -1) + 1
        own = next((text for key, text in value if key in _NAMED_BY and isinstance(text, str)), None)
        label = (
            f"{name}.{own}" if own is not None else name if name not in _REPEATED else f"{name}.{seen[name]}"
        )
        yield from _flat(
            [field for field in value if field[0] not in _NAMED_BY or own is None], f"{prefix}{label}."
        )
    yield from ((f"{prefix}{name}", " ".join(found)) for name, found in plain.items())
