"""The fields of an extraction, by the caller's JSON Schema, and the form of a reply about them. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jobs.errors import InvalidRequestError
from jobs.prompts import guides
from jobs.prompts.guides import Guide
from jobs.states.summary import JoinRule

MAX_FIELDS: Final = 100
MAX_NAME_CHARS: Final = 64
# Kept with each document's row; a request may name a thousand documents.
MAX_SCHEMA_CHARS: Final = 20_000
JOIN_KEYWORD: Final = "x-longbatch-join"
_DEFINITIONS: Final = ("$defs", "definitions")
_NUMBERS: Final = frozenset({"integer", "number"})
# Without a rule of the caller's, by type; every other type takes the most frequent value.
_DEFAULTS: Final = {"array": JoinRule.ALL, "object": JoinRule.FIRST}
_NEEDS: Final[Mapping[JoinRule, frozenset[str]]] = {
    JoinRule.ALL: frozenset({"array"}),
    JoinRule.SUM: _NUMBERS,
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    Attributes:
        schema: of its value, without our own keyword.
        rule: how the values of parts become one.
        is_nullable: null is a value of its type: what a document without the field has.
    """

    name: str
    schema: Mapping[str, Any]
    rule: JoinRule
    is_nullable: bool


def read_fields(schema: Mapping[str, Any], joins: Mapping[str, JoinRule]) -> list[Field]:
    """Read the fields in their order; a rule in `joins` goes before one in the schema.

    Args:
        schema: `guides.check` found no fault in it.
        joins: rules by field.

    Raises:
        InvalidRequestError: the schema or a rule cannot be used; `param` names it.
    """
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, dict) or not properties:
        raise _refused("schema", 'must have "type": "object" and at least one of "properties".')
    if len(properties) > MAX_FIELDS:
        raise _refused("schema", f"must not have more than {MAX_FIELDS} properties.")
    guide = guides.json_guide(schema, param="schema")
    if len(guide.content) > MAX_SCHEMA_CHARS:
        raise _refused("schema", f"must not exceed {MAX_SCHEMA_CHARS} characters.")
    _check_references(schema)
    for name in joins:
        if name not in properties:
            raise _refused(f"joins.{name}", "the schema has no such property.")
    return [_field(name, each, schema, joins.get(name)) for name, each in properties.items()]


def field_names(schema: Mapping[str, Any]) -> list[str]:
    """Name the fields of an accepted schema in their order."""
    return [*schema["properties"]]


def reply_guide(schema: Mapping[str, Any], fields: Sequence[Field]) -> Guide:
    """Make the guide of a reply: each field with the quote that it is taken from, or null.

    Raises:
        InvalidRequestError: it exceeds a limit of guides.
    """
    return guides.json_guide(
        {
            **{name: schema[name] for name in ("$schema", *_DEFINITIONS) if name in schema},
            "type": "object",
            # The quote comes first: engines write in this order, and a value is then read from the quote.
            "properties": {each.name: _reply_of(each) for each in fields},
            "required": [each.name for each in fields],
            "additionalProperties": False,
        },
        param="schema",
    )


def definitions(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the schemas of fields may refer to, by the keyword."""
    return {name: schema[name] for name in _DEFINITIONS if schema.get(name)}


def _reply_of(field: Field) -> Mapping[str, Any]:
    value = field.schema if field.is_nullable else {"anyOf": [field.schema, {"type": "null"}]}
    return {
        "type": "object",
        "properties": {"quote": {"type": "string"}, "value": value},
        "required": ["quote", "value"],
        "additionalProperties": False,
    }


def _field(name: str, schema: object, whole: Mapping[str, Any], rule: JoinRule | None) -> Field:
    if not name.strip() or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise _refused("schema", f"names of properties are 1 to {MAX_NAME_CHARS} printable characters.")
    if not isinstance(schema, dict):
        raise _refused("schema", f"{name}: must be an object.")
    types = _types(schema, whole)
    said = types - {"null"}
    if rule is None:
        rule = _declared(name, schema)
    if rule is None:
        rule = _DEFAULTS.get(next(iter(said)), JoinRule.MOST_FREQUENT) if len(said) == 1 else JoinRule.FIRST
    needed = _NEEDS.get(rule)
    if needed is not None and not (said and said <= needed):
        kinds = " or ".join(sorted(needed))
        raise _refused(f"joins.{name}", f"{rule.value} joins values of type {kinds} alone.")
    plain = {key: value for key, value in schema.items() if key != JOIN_KEYWORD}
    return Field(name, plain, rule, is_nullable="null" in types)


def _declared(name: str, schema: Mapping[str, Any]) -> JoinRule | None:
    found = schema.get(JOIN_KEYWORD)
    if found is None:
        return None
    try:
        return JoinRule(found)
    except ValueError:
        raise _refused("schema", f"{name}: {JOIN_KEYWORD} must be one of {', '.join(JoinRule)}.") from None


def _types(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> set[str]:
    """Return the types that a value of this schema may have, as far as it names them.

    Each reference is followed once, as definitions may refer to each other and to themselves many times.
    """
    found: set[str] = set()
    followed: set[str] = set()
    waiting: list[object] = [schema]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, dict):
            continue
        named = each.get("type")
        if named is not None:
            found.update([named] if isinstance(named, str) else named)
            continue
        values = [*(each.get("enum") or ()), *([each["const"]] if "const" in each else ())]
        found.update(_TYPES[type(value)] for value in values)
        for among in ("anyOf", "oneOf"):
            waiting += each.get(among) or ()
        reference = each.get("$ref")
        if reference is not None and reference not in followed:
            followed.add(reference)
            waiting.append(_referred(reference, whole))
    return found


_TYPES: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def _referred(reference: str, whole: Mapping[str, Any]) -> object:
    found: object = whole
    for step in reference.removeprefix("#/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _check_references(schema: Mapping[str, Any]) -> None:
    """Refuse references that would lead elsewhere in the schema of a reply; without recursion."""
    waiting: list[object] = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            reference = each.get("$ref")
            if isinstance(reference, str) and not reference.startswith(("#/$defs/", "#/definitions/")):
                shown = json.dumps(reference[:100])
                raise _refused("schema", f"$ref must lead to $defs or definitions; this is {shown}.")
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _refused(param: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}: {message}", param=param)
