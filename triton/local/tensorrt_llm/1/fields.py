"""Fields of a document in the JSON that Longbatch asks for: each from the sentence that has its words."""

import json
import re
from collections.abc import Mapping
from typing import Any

from .documents import Asked
from .summary import content_words, sentences

# The end of a prompt that asks for the fields of a document or of a part of one.
_ASKED = re.compile(
    r"describes its value:\n\n(?P<fields>.+?)\n\n(?:They refer to .+?\n\n)?Answer with a JSON object of all",
    re.DOTALL,
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MAX_WORDS = 40  # of a sentence that is said as a value and as its quote
_NOTHING = {"quote": "", "value": None}


def reply(message: Asked) -> str | None:
    """Reply to a message that asks for the fields of its texts.

    Returns:
        None: it asks for none.
    """
    asked = _ASKED.search(message.task)
    if asked is None:
        return None
    said = [" ".join(each.split()[:_MAX_WORDS]) for each in sentences(message.texts)]
    found = {}
    for line in asked["fields"].splitlines():
        field = json.loads(f"{{{line}}}")
        for name, schema in field.items():
            found[name] = _find(name, schema, said)
    return json.dumps(found, ensure_ascii=False)


def _find(name: str, schema: Mapping[str, Any], said: list[str]) -> dict[str, Any]:
    """Take the value from the sentence with most words of its name and description, at least half."""
    words = {*content_words(name.replace("_", " "))}
    described = words.union(content_words(str(schema.get("description", ""))))
    best = max(said, key=lambda each: _score(each, described), default="")
    if 2 * _score(best, described) < max(1, len(words)):
        return _NOTHING
    value = _value(schema, best)
    return _NOTHING if value is None else {"quote": best, "value": value}


def _value(schema: Mapping[str, Any], said: str) -> Any:  # noqa: ANN401  # JSON
    kinds = schema.get("type", "string")
    kind = kinds if isinstance(kinds, str) else next(each for each in kinds if each != "null")
    if kind in ("integer", "number"):
        numbers = _NUMBER.findall(said)
        return None if not numbers else int(float(numbers[-1])) if kind == "integer" else float(numbers[-1])
    if kind == "array":
        element = _value(schema.get("items") or {}, said)
        return None if element is None else [element]
    return {"string": said, "boolean": True}.get(kind)


def _score(text: str, words: set[str]) -> int:
    return len(words.intersection(content_words(text)))
