"""The schemas that guide llama.cpp's answers: what it understands of a caller's, so that it guides at all.

Its compiler (LLGuidance; without it llama.cpp's own) gives up on a schema with one keyword that it does not
know, and the server then leaves the answer unguided without a word. So what it does not know is left out.
Answers are checked against the caller's schema afterwards: a guide only makes right ones likely.

Source: LLGuidance's docs/json_schema.md on what it implements; tried on llama.cpp of October 2026.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from worker.engine.http.schema_references import with_pointers

Json = Mapping[str, Any]

# What is passed on as it is.
_VALUES: Final = frozenset(
    {
        *("$schema", "type", "const", "enum", "required", "pattern"),
    }
)
_COUNTS: Final = frozenset({"minLength", "maxLength", "minItems", "maxItems"})
_SCHEMAS: Final = frozenset({"items", "additionalItems"})
_LISTS: Final = frozenset({"allOf", "anyOf", "prefixItems", "items"})
_MAPS: Final = frozenset({"properties", "$defs", "definitions"})
_FORMATS: Final = frozenset(
    {
        *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
    }
)
# Properties beside these say nothing of others that an answer may have, or an intersection must stay open.
_OPENING: Final = frozenset(
    {
        *(
            "additionalProperties",
            "patternProperties",
            "unevaluatedProperties",
            "minProperties",
            "propertyNames",
        ),
        *(
            "allOf",
            "anyOf",
            "oneOf",
            "not",
            "if",
            "dependentSchemas",
            "dependentRequired",
            "dependencies",
            "$ref",
        ),
    }
)
# A schema that they combine is closed by what it is combined with, which lies elsewhere.
_COMBINING: Final = (
    "allOf",
    "if",
    "dependentSchemas",
    "dependencies",
    "$dynamicRef",
    "unevaluatedProperties",
)
# Integers that every reader of JSON understands (RFC 7493); where nothing bounds them, digits have no end.
_MAX_INTEGER: Final = 2**53 - 1
# Bounds of numbers that the compiler takes, and steps that it takes within a fraction of a second; measured.
_LEAST: Final = 1e-9
_MOST: Final = 1e21
_MAX_STEP: Final = 10_000
_DECIMAL_STEPS: Final = frozenset({0.5, *(10.0**-digits for digits in range(1, 7))})
# What the decimals of a bounded number are steps of, and the least bound that leaves it six; measured. Beside
# a bound of 1e20 the compiler does not know such steps, and guides nothing.
_DECIMALS: Final = 1e-9
_LEAST_WITH_DECIMALS: Final = 1e-3
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
# Names of properties, and characters of one, that guide: thousands would hold up the engine.
_MAX_NAMES: Final = 100
# Characters of a schema that is written out for each of several names; repeated within itself it would
# multiply with every level.
_MAX_WRITTEN_OUT: Final = 10_000
# What evaluates properties that are not listed, or that another schema lists.
_EVALUATING: Final = frozenset({"patternProperties", "additionalProperties", "$ref", "$dynamicRef"})
# Times whose fractions of a second end. RFC 3339 allows any number of digits.
_TIME: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_DATE: Final = (
    r"[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|[12][0-9]))"
)
# Addresses whose parts end: those of RFC 5321 may be longer, and the compiler ends none.
_ATOM: Final = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_EMAIL: Final = rf"{_ATOM}(\.{_ATOM}){{0,2}}@({_LABEL}\.){{1,4}}[A-Za-z]{{2,12}}"
_PATTERNS: Final[Json] = {
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "email": f"^{_EMAIL}$",
}
# On one line, as Python writes JSON: a blank may otherwise be followed by blanks without end.
_OPTIONS: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def guiding(schema: Json) -> dict[str, Any]:
    """Return what llama.cpp understands of a schema, bounded where nothing but itself would end an answer.

    Objects whose properties are listed get no others, as with XGrammar, unless the schema speaks of others.
    """
    schema = with_pointers(schema)
    reduced = _reduced(schema, closes=not _combines(schema))
    # Nothing is valid by a schema that is False: whatever is said then fails its check.
    return {**(reduced or {}), "x-guidance": _OPTIONS}


def _reduced(schema: Any, *, closes: bool) -> Any:  # noqa: ANN401  # JSON
    """Reduce a schema or subschema; its depth is bounded where it is accepted."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("not") in ({}, True):  # as nothing is valid by it
        return False
    found = {name: value for name, value in schema.items() if _is_known(name, value)}
    for name, value in schema.items():
        if name in _COUNTS:
            found[name] = int(value)  # 2.0 is a count in JSON Schema
        elif name in _LISTS and isinstance(value, list):
            found[name] = [_reduced(each, closes=closes) for each in value]
        elif name in _SCHEMAS:
            found[name] = _reduced(value, closes=closes)
        elif name in _MAPS and isinstance(value, dict):
            found[name] = {key: _reduced(each, closes=closes) for key, each in value.items()}
    _add_special(found, schema, closes=closes)
    _add_condition(found, schema, closes=closes)
    _bound_integers(found)
    _bound_decimals(found)
    if closes and "properties" in schema and _is_closed_by_its_properties(schema):
        found["additionalProperties"] = False
    _leave_out_unevaluated(found, schema, closes=closes)
    _add_names(found, schema)
    return found


def _add_special(found: dict[str, Any], schema: Json, *, closes: bool) -> None:
    """Add what is understood under conditions alone."""
    one_of = schema.get("oneOf")
    if isinstance(one_of, list) and "anyOf" not in schema:
        found["anyOf"] = [_reduced(each, closes=closes) for each in one_of]
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        found["$ref"] = reference
    kind = schema.get("format")
    if (
        isinstance(kind, str)
        and kind in _PATTERNS
        and "pattern" not in found
        and schema.get("type") == "string"
    ):
        found["pattern"] = _PATTERNS[kind]
    elif kind in _FORMATS:
        found["format"] = kind
    patterns = schema.get("patternProperties", {})
    if len(patterns) <= 1:  # several must exclude each other
        if patterns:
            found["patternProperties"] = {
                key: _reduced(each, closes=closes) for key, each in patterns.items()
            }
        if "additionalProperties" in schema:
            found["additionalProperties"] = _reduced(schema["additionalProperties"], closes=closes)
    if "properties" not in schema and not patterns:
        found |= {name: int(schema[name]) for name in ("minProperties", "maxProperties") if name in schema}


def _add_condition(found: dict[str, Any], schema: Json, *, closes: bool) -> None:
    """Add what an answer must be under a condition; where it need not be anything otherwise, leave it out."""
    parts = {name: _reduced(schema.get(name, True), closes=closes) for name in ("if", "then", "else")}
    match schema.get("if"):
        case bool(is_met):
            found["allOf"] = [*found.get("allOf", ()), parts["then" if is_met else "else"]]
        case dict() if "else" in schema and "anyOf" not in found:
            # Whether the condition is met otherwise cannot be guided, and is checked afterwards.
            found["anyOf"] = [{"allOf": [parts["if"], parts["then"]]}, parts["else"]]


def _add_names(found: dict[str, Any], schema: Json) -> None:
    """Add what properties may be called, where the schema says nothing of any by its name."""
    if {"properties", "patternProperties", "minProperties", "maxProperties"} & schema.keys():
        return
    value = found.get("additionalProperties", True)
    match schema.get("propertyNames"):
        case {"enum": list(names)} if len(names) <= _MAX_NAMES and _can_repeat(value, len(names)):
            found["properties"] = {name: value for name in names if isinstance(name, str)}
        case {"const": str(name)}:
            found["properties"] = {name: value}
        case {"pattern": str(pattern)}:
            found["patternProperties"] = {pattern: value}
        case {"maxLength": int(length)} if length <= _MAX_NAMES:
            found["patternProperties"] = {f"^.{{0,{length}}}$": value}
        case _:
            return
    found["additionalProperties"] = False


def _can_repeat(value: object, times: int) -> bool:
    return times * len(json.dumps(value)) <= _MAX_WRITTEN_OUT


def _leave_out_unevaluated(found: dict[str, Any], schema: Json, *, closes: bool) -> None:
    """Allow only what is listed beside a ban of all that no schema evaluates, if that can be enough."""
    is_banned = schema.get("unevaluatedProperties") is False
    if is_banned and (listed := _listed(schema)) is not None:
        found["properties"] = dict.fromkeys(sorted(listed), True) | found.get("properties", {})
        found.setdefault("additionalProperties", False)
    elif is_banned and not _requires(schema, beside=schema.get("properties", {})):
        found.setdefault("properties", {})
        found.setdefault("additionalProperties", False)
    elif isinstance(schema.get("unevaluatedProperties"), dict) and not _combines_properties(schema):
        found.setdefault("additionalProperties", _reduced(schema["unevaluatedProperties"], closes=closes))
    if schema.get("unevaluatedItems") is False and not {"minItems", "contains"} & _keywords(schema):
        found.setdefault("items", False)


def _combines_properties(schema: Json) -> bool:
    """Return whether something beside the schema's own properties may evaluate others."""
    combining = {"allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas", "patternProperties"}
    return bool((combining | _EVALUATING) & schema.keys())


def _requires(schema: Any, *, beside: Json) -> bool:  # noqa: ANN401  # JSON
    """Return whether a schema or a part of it requires properties that are not among these."""
    if isinstance(schema, dict):
        required = schema.get("required", ())
        names = required if isinstance(required, list) else ()
        return any(name not in beside for name in names) or any(
            _requires(each, beside=beside) for each in schema.values()
        )
    return isinstance(schema, list) and any(_requires(each, beside=beside) for each in schema)


def _listed(schema: Any) -> frozenset[str] | None:  # noqa: ANN401  # JSON
    """Return the properties that a schema and what it combines list; None: others may be evaluated, too."""
    if not isinstance(schema, dict):
        return frozenset()
    if _EVALUATING & schema.keys() or schema.get("unevaluatedProperties", False) is not False:
        return None
    found = frozenset(schema.get("properties", ()))
    parts = [schema[name] for name in ("if", "then", "else") if name in schema]
    parts += [each for name in ("allOf", "anyOf", "oneOf") for each in schema.get(name, ())]
    for each in [*parts, *schema.get("dependentSchemas", {}).values()]:
        listed = _listed(each)
        if listed is None:
            return None
        found |= listed
    return found


def _keywords(schema: Any) -> set[str]:  # noqa: ANN401  # JSON
    """Return the names in a schema and its parts."""
    if isinstance(schema, dict):
        return set(schema).union(*map(_keywords, schema.values()))
    return set().union(*map(_keywords, schema)) if isinstance(schema, list) else set()


def _bound_integers(found: dict[str, Any]) -> None:
    kinds = found.get("type")
    if "integer" in (kinds if isinstance(kinds, list) else [kinds]):
        _bound_digits(found)


def _bound_digits(found: dict[str, Any]) -> None:
    """Let the digits before a point end."""
    if "minimum" not in found and "exclusiveMinimum" not in found:
        found["minimum"] = min(-_MAX_INTEGER, *_numbers(found, "maximum", "exclusiveMaximum"))
    if "maximum" not in found and "exclusiveMaximum" not in found:
        found["maximum"] = max(_MAX_INTEGER, *_numbers(found, "minimum", "exclusiveMinimum"))


def _bound_decimals(found: dict[str, Any]) -> None:
    """Let a number end that has a bound, beside which it is guided without an exponent."""
    bounds = [abs(found[name]) for name in _BOUNDS if name in found]
    is_number = found.get("type") == "number" and "multipleOf" not in found
    if (
        is_number
        and bounds
        and all(not each or _LEAST_WITH_DECIMALS <= each <= _MAX_INTEGER for each in bounds)
    ):
        found["multipleOf"] = _DECIMALS
        _bound_digits(found)


def _is_known(name: str, value: Any) -> bool:  # noqa: ANN401  # JSON
    """Return whether a keyword is passed on as it is."""
    match name:
        case "multipleOf":
            return _is_cheap(value)
        case _ if name in _BOUNDS:
            return _is_plain(value)
    return name in _VALUES


def _is_plain(bound: object) -> bool:
    """Return whether digits can be guided by a bound, as they cannot be where they are hundreds."""
    return isinstance(bound, int | float) and (bound == 0 or _LEAST <= abs(bound) < _MOST)


def _is_cheap(step: float) -> bool:
    """Return whether steps can be guided without holding up the engine: one of 999,983 takes ten seconds."""
    return step in _DECIMAL_STEPS or (float(step).is_integer() and step <= _MAX_STEP)


def _numbers(found: Json, *names: str) -> list[float]:
    """Return the bounds among these keywords, and 0, so that there is one."""
    given = [found[name] for name in names if isinstance(found.get(name), int | float)]
    return [0, *(2 * each for each in given)]


def _is_closed_by_its_properties(schema: Json) -> bool:
    required, properties = schema.get("required", ()), schema["properties"]
    return (
        not _OPENING & schema.keys()
        and isinstance(properties, dict)
        and isinstance(required, list | tuple)
        and all(name in properties for name in required)
    )


def _combines(schema: Any) -> bool:  # noqa: ANN401  # JSON
    if isinstance(schema, dict):
        has_siblings = "$ref" in schema and ("properties" in schema or "required" in schema)
        return (
            has_siblings or any(name in schema for name in _COMBINING) or any(map(_combines, schema.values()))
        )
    return isinstance(schema, list) and any(map(_combines, schema))
