"""Renders the OpenAPI document as one HTML page without scripts."""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

_STYLE: Final = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}
h2{margin-top:2.5rem;font-size:1.05rem} code,pre{font-family:ui-monospace,monospace;font-size:.9rem}
pre{background:#f5f5f2;padding:.8rem;overflow-x:auto;border-radius:6px} .verb{font-weight:700;color:#0b5}
table{border-collapse:collapse;width:100%}
td{border-top:1px solid #ddd;padding:.3rem .6rem .3rem 0;vertical-align:top}
details{margin:.5rem 0} summary{cursor:pointer}
@media (prefers-color-scheme:dark){
body{background:#161616;color:#e6e6e6} pre{background:#222} td{border-color:#333}}
"""
_LIMITS: Final = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "minLength": "at least",
    "maxLength": "at most",
}


def page(document: Mapping[str, Any]) -> str:
    """Render the document for people to read."""
    info = document["info"]
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(info['title'])} API</title>",
        "<meta name='viewport' content='width=device-width'>",
        f"<style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])} API <small>{escape(info['version'])}</small></h1>",
        f"<p>{escape(info.get('description', ''))}</p>",
        "<p>For programs: <a href='openapi.json'>openapi.json</a>.</p>",
    ]
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            parts += _operation(verb, path, operation)
    parts.append("<h1>Objects</h1>")
    for name, schema in document["components"]["schemas"].items():
        parts += _schema(name, schema)
    return "\n".join(parts)


def _operation(verb: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2><span class='verb'>{verb.upper()}</span> <code>{escape(path)}</code></h2>"
    yield f"<p><b>{escape(operation.get('summary', ''))}.</b> {escape(operation.get('description', ''))}</p>"
    rows = [
        (each["name"], each["in"], _type(each["schema"]), each.get("description", ""))
        for each in operation.get("parameters", [])
    ]
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        rows.append(("body", media_type, _type(content["schema"]), ""))
    for status, answer in operation["responses"].items():
        shapes = [_type(content.get("schema", {})) for content in answer.get("content", {}).values()]
        rows.append((f"→ {status}", "", " or ".join(shapes), answer.get("description", "")))
    yield _table(rows)


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2 id='{escape(name)}'><code>{escape(name)}</code></h2>"
    yield f"<p>{escape(schema.get('description', ''))}</p>"
    required = schema.get("required", [])
    yield _table(
        [
            (field, "required" if field in required else "", _type(each), each.get("description", ""))
            for field, each in schema.get("properties", {}).items()
        ]
    )
    for example in schema.get("examples", []):
        shown = escape(json.dumps(example, indent=2, ensure_ascii=False))
        yield f"<details><summary>example</summary><pre>{shown}</pre></details>"


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    """Render rows of name, place, type (already HTML) and meaning."""
    cells = (
        f"<tr><td><code>{escape(name)}</code><td>{escape(place)}<td>{kind}<td>{escape(meaning)}"
        for name, place, kind, meaning in rows
    )
    return f"<table>{''.join(cells)}</table>"


def _type(schema: Mapping[str, Any]) -> str:  # noqa: PLR0911  # one return for each kind of schema
    """Summarize a schema in a few words of HTML, with links to the objects it names."""
    match schema:
        case {"$ref": str(reference)}:
            name = escape(reference.rsplit("/", 1)[-1])
            return f"<a href='#{name}'>{name}</a>"
        case {"anyOf": branches} | {"oneOf": branches}:
            return " or ".join(_type(branch) for branch in branches)
        case {"enum": values}:
            return " | ".join(f"<code>{escape(str(value))}</code>" for value in values)
        case {"const": value}:
            return f"<code>{escape(json.dumps(value))}</code>"
        case {"type": "array"}:
            return f"list of {_type(schema.get('items', {}))}"
        case {"contentSchema": line}:
            return f"lines of {_type(line)}"
        case _:
            limits = [f"{word} {schema[key]}" for key, word in _LIMITS.items() if key in schema]
            return escape(" ".join([str(schema.get("type", "any")), *limits]))
