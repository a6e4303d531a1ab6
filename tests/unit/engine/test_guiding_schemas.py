"""What guides llama.cpp of a caller's schema: what it understands, bounded where it would not end."""

import json
import re
from typing import Any

import pytest

from worker.engine.http.guiding_schemas import guiding

LARGEST = 2**53 - 1
OPEN = {"type": "object", "properties": {"a": {"type": "string"}}}


def guide_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in guiding(schema).items() if name != "x-guidance"}


@pytest.mark.parametrize(
    "unknown",
    [
        {"not": {"required": ["b"]}},
        {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
        {"uniqueItems": True},
        {"contains": {"const": 1}},
        {"format": "nosuch"},
        {"description": "A thing"},
        {"x-guidance": {"lenient": True}},
        {"$ref": "#anchor"},
    ],
)
def test_what_the_engine_does_not_know_is_left_out_so_that_it_guides_by_the_rest(
    unknown: dict[str, Any],
) -> None:
    assert guide_of({"type": "object", **unknown}) == {"type": "object"}
    nested = {"type": "array", "prefixItems": [{"type": "string", **unknown}], "items": unknown}
    assert guide_of(nested) == {"type": "array", "prefixItems": [{"type": "string"}], "items": {}}


def test_it_writes_json_on_one_line_whatever_the_schema_says() -> None:
    assert guiding({"x-guidance": {"nonsense": 1}})["x-guidance"] == {
        "whitespace_flexible": False,
        "item_separator": ", ",
        "key_separator": ": ",
    }


def test_one_of_guides_as_any_of() -> None:
    assert guide_of({"oneOf": [{"const": 1}, {"const": 2}]}) == {"anyOf": [{"const": 1}, {"const": 2}]}


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, {"minimum": -LARGEST, "maximum": LARGEST}),
        ({"minimum": 3}, {"minimum": 3, "maximum": LARGEST}),
        ({"exclusiveMaximum": 3}, {"minimum": -LARGEST, "exclusiveMaximum": 3}),
        ({"minimum": 10**20}, {"minimum": 10**20, "maximum": 2 * 10**20}),
        ({"maximum": -(10**20)}, {"minimum": -2 * 10**20, "maximum": -(10**20)}),
    ],
)
def test_integers_have_an_end(bounds: dict[str, int], expected: dict[str, int]) -> None:
    assert guide_of({"type": "integer", **bounds}) == {"type": "integer", **expected}
    assert guide_of({"type": ["null", "integer"], **bounds}) == {"type": ["null", "integer"], **expected}
    assert guide_of({"type": "string", **bounds}) == {"type": "string", **bounds}


@pytest.mark.parametrize("step", [7, 10_000, 0.01, 0.5])
def test_steps_and_bounds_are_kept(step: float) -> None:
    schema = {"type": "number", "multipleOf": step, "minimum": 0, "exclusiveMaximum": 1e6}
    assert guide_of(schema) == schema


def test_what_would_hold_up_the_engine_or_keep_it_from_guiding_is_left_out() -> None:
    number = {"type": "number"}
    assert guide_of({**number, "multipleOf": 999_983}) == number
    assert guide_of({**number, "multipleOf": 0.0001237}) == number
    assert guide_of({**number, "minimum": 1e-300, "maximum": 1.7e308}) == number


@pytest.mark.parametrize("nothing", [{"not": {}}, {"not": True}])
def test_nothing_is_allowed_where_everything_is_forbidden(nothing: dict[str, Any]) -> None:
    assert guide_of({"properties": {"a": nothing}})["properties"] == {"a": False}
    assert guide_of(nothing) == {}, "the check refuses whatever is said"


def test_only_what_is_listed_is_allowed_beside_a_ban_of_what_is_not_evaluated() -> None:
    ban = {"unevaluatedProperties": False}
    assert guide_of({**OPEN, **ban}) == {**OPEN, "additionalProperties": False}
    combined = {**OPEN, **ban, "allOf": [{"patternProperties": {"^b": {"type": "string"}}}]}
    assert guide_of(combined)["additionalProperties"] is False
    needed = {**OPEN, **ban, "allOf": [{"properties": {"b": {}}, "required": ["b"]}]}
    assert guide_of(needed)["properties"] == {"a": {"type": "string"}, "b": True}
    assert guide_of(needed)["additionalProperties"] is False
    open_ = {**OPEN, **ban, "allOf": [{"$ref": "#/$defs/b", "required": ["b"]}], "$defs": {"b": {}}}
    assert "additionalProperties" not in guide_of(open_)
    items = {"type": "array", "unevaluatedItems": False}
    assert guide_of(items) == {"type": "array", "items": False}
    assert "items" not in guide_of({**items, "minItems": 1})


def test_what_is_not_evaluated_is_guided_where_nothing_else_evaluates_properties() -> None:
    text = {"unevaluatedProperties": {"type": "string"}}
    assert guide_of(text) == {"additionalProperties": {"type": "string"}}
    assert guide_of({**OPEN, **text}) == {**OPEN, "additionalProperties": {"type": "string"}}
    assert "additionalProperties" not in guide_of({**text, "allOf": [{"properties": {"a": {"const": 1}}}]})


def test_a_decimal_count_is_a_count() -> None:
    assert guide_of({"maxItems": 2.0, "type": "array"}) == {"maxItems": 2, "type": "array"}


def test_objects_get_the_properties_that_are_listed_and_no_others() -> None:
    closed = {**OPEN, "additionalProperties": False}
    assert guide_of(OPEN) == closed
    assert guide_of({"$defs": {"o": OPEN}, "items": {"$ref": "#/$defs/o"}})["$defs"] == {"o": closed}
    assert guide_of({"anyOf": [OPEN, {"type": "null"}]}) == {"anyOf": [closed, {"type": "null"}]}


@pytest.mark.parametrize(
    "schema",
    [
        {**OPEN, "additionalProperties": True},
        {**OPEN, "additionalProperties": {"type": "string"}},
        {**OPEN, "patternProperties": {"^x": {"type": "string"}}},
        {**OPEN, "required": ["b"]},
        {**OPEN, "minProperties": 2},
        {**OPEN, "$ref": "#/$defs/b", "$defs": {"b": {"type": "object"}}},
        {"allOf": [OPEN, {"properties": {"b": {"type": "string"}}}]},
        {"$defs": {"o": OPEN}, "allOf": [{"$ref": "#/$defs/o"}, {"required": ["b"]}]},
        {"type": "object"},
    ],
)
def test_objects_that_may_need_other_properties_stay_open(schema: dict[str, Any]) -> None:
    def is_closed(found: Any) -> bool:  # noqa: ANN401  # JSON
        if isinstance(found, dict):
            return found.get("additionalProperties") is False or any(map(is_closed, found.values()))
        return isinstance(found, list) and any(map(is_closed, found))

    assert not is_closed(guide_of(schema))


def resolved(schema: dict[str, Any]) -> Any:  # noqa: ANN401  # JSON
    """What the reference at the schema's items leads to."""
    guide = guide_of(schema)
    pointer = guide["items"]["$ref"]
    return guide if pointer == "#" else guide["$defs"][pointer.removeprefix("#/$defs/")]


@pytest.mark.parametrize(
    ("reference", "defs"),
    [
        ({"$ref": "#a"}, {"x": {"$anchor": "a", "type": "string"}}),
        ({"$ref": "#a"}, {"x": {"$dynamicAnchor": "a", "type": "string"}}),
        ({"$dynamicRef": "#a"}, {"x": {"$dynamicAnchor": "a", "type": "string"}}),
        ({"$ref": "other"}, {"x": {"$id": "other", "type": "string"}}),
        ({"$ref": "http://a/other#/$defs/y"}, {"x": {"$id": "other", "$defs": {"y": {"type": "string"}}}}),
        ({"$ref": "other#b"}, {"x": {"$id": "other", "items": {"$anchor": "b", "type": "string"}}}),
        ({"$ref": "#/$defs/x/not"}, {"x": {"not": {"type": "string"}}}),
        ({"$ref": "#/$defs/a%25~1b"}, {"a%/b": {"type": "string"}}),
        ({"$ref": "#/$defs/x"}, {"x": {"type": "string"}}),
    ],
)
def test_a_reference_is_followed_by_whatever_name(reference: dict[str, Any], defs: dict[str, Any]) -> None:
    schema = {"$id": "http://a/b", "type": "array", "items": reference, "$defs": defs}
    assert resolved(schema) == {"type": "string"}


def test_a_dynamic_reference_leads_to_the_anchor_of_the_outermost_schema() -> None:
    inner = {"$id": "list", "items": {"$dynamicRef": "#t"}, "$defs": {"d": {"$dynamicAnchor": "t"}}}
    extending = {"s": {"$dynamicAnchor": "t", "type": "string"}}
    guide = guide_of({"$id": "http://a/b", "$ref": "list", "$defs": {**extending, "list": inner}})
    by_name = {f"#/$defs/{name}": each for name, each in guide["$defs"].items()}
    assert by_name[by_name[guide["$ref"]]["items"]["$ref"]] == {"type": "string"}
    plain = {**inner, "$defs": {"d": {"$anchor": "t", "type": "integer"}}}
    guide = guide_of({"$id": "http://a/b", "$ref": "list", "$defs": {**extending, "list": plain}})
    by_name = {f"#/$defs/{name}": each for name, each in guide["$defs"].items()}
    assert by_name[by_name[guide["$ref"]]["items"]["$ref"]]["type"] == "integer"


def test_a_schema_may_contain_itself() -> None:
    tree = {"$id": "http://a/tree", "type": "array", "items": {"$ref": "tree"}}
    assert guide_of(tree) == {"type": "array", "items": {"$ref": "#"}}
    node = {"$anchor": "node", "type": "array", "items": {"$ref": "#node"}}
    found = guide_of({"items": {"$ref": "#node"}, "$defs": {"n": node}})
    name = found["items"]["$ref"].removeprefix("#/$defs/")
    assert found["$defs"][name] == {"type": "array", "items": {"$ref": f"#/$defs/{name}"}}


def test_names_within_values_are_no_references() -> None:
    schema = {"enum": [{"$ref": "#nosuch"}, {"$id": "a"}], "properties": {"$ref": {"type": "string"}}}
    assert guide_of(schema)["enum"] == schema["enum"]
    assert guide_of(schema)["properties"] == {"$ref": {"type": "string"}}


def test_a_condition_guides_by_what_holds_if_it_is_met_and_otherwise() -> None:
    yes, no = {"const": "yes"}, {"const": "no"}
    short = {"maxLength": 4}
    assert guide_of({"if": short, "then": yes, "else": no}) == {"anyOf": [{"allOf": [short, yes]}, no]}
    assert guide_of({"if": True, "then": yes, "else": no}) == {"allOf": [yes]}
    assert guide_of({"if": False, "then": yes, "else": no}) == {"allOf": [no]}


def test_bounded_numbers_end_before_and_after_their_point() -> None:
    bounded = {"type": "number", "minimum": 0}
    assert guide_of(bounded) == {**bounded, "maximum": LARGEST, "multipleOf": 1e-9}
    above = {"type": "number", "exclusiveMinimum": 10**20}
    assert guide_of(above) == above
    tiny = {"type": "number", "minimum": 0, "maximum": 1e-4}
    assert guide_of(tiny) == tiny
    assert guide_of({"type": "number"}) == {"type": "number"}


@pytest.mark.parametrize(
    ("names", "guided"),
    [
        ({"enum": ["a", "b", 1]}, {"properties": {"a": {"const": 1}, "b": {"const": 1}}}),
        ({"const": "a"}, {"properties": {"a": {"const": 1}}}),
        ({"pattern": "^x"}, {"patternProperties": {"^x": {"const": 1}}}),
        ({"maxLength": 3}, {"patternProperties": {"^.{0,3}$": {"const": 1}}}),
    ],
)
def test_names_of_properties_guide_where_none_is_listed(
    names: dict[str, Any], guided: dict[str, Any]
) -> None:
    schema = {"propertyNames": names, "additionalProperties": {"const": 1}}
    assert guide_of(schema) == {**guided, "additionalProperties": False}
    assert "patternProperties" not in guide_of({**schema, "properties": {"a": True}})
    for left_out in ({"minLength": 1}, {"maxLength": 101}, {"enum": [str(each) for each in range(101)]}):
        assert guide_of({"propertyNames": left_out}) == {}


def test_names_within_names_do_not_multiply() -> None:
    schema: dict[str, Any] = {"const": 1}
    for _ in range(5):
        schema = {"propertyNames": {"enum": list("abcdefghij")}, "additionalProperties": schema}
    guide = guide_of(schema)
    assert len(json.dumps(guide)) < 20_000, "ten names on five levels would be 100,000 schemas"
    for _ in range(3):
        guide = guide["additionalProperties"]
    assert {*guide["properties"]} == {*"abcdefghij"}, "what is small is still guided by names"


@pytest.mark.parametrize(
    ("kind", "value"), [("time", "10:15:00.123456789Z"), ("date-time", "2028-02-29T23:59:59+01:00")]
)
def test_fractions_of_seconds_end(kind: str, value: str) -> None:
    pattern = guide_of({"type": "string", "format": kind})["pattern"]
    assert re.search(pattern, value)
    assert not re.search(pattern, value.replace("123456789", "1234567890").replace("02-29", "02-30"))


def test_addresses_end() -> None:
    pattern = guide_of({"type": "string", "format": "email"})["pattern"]
    for address in (
        "a@b.de",
        "o'brien+x@mail.example-1.com",
        f"{'a' * 20}.{'b' * 20}.{'c' * 20}@a.b.c.d.org",
    ):
        assert re.search(pattern, address)
    for no_address in (
        "a@b",
        ".a@b.de",
        "a..b@b.de",
        "a@-b.de",
        "a b@b.de",
        f"{'1' * 21}@b.de",
        "a@b.c.d.e.f.de",
    ):
        assert not re.search(pattern, no_address)


def test_a_reference_to_nothing_is_left_out() -> None:
    assert guide_of({"items": {"$ref": "#/$defs/no"}, "$defs": {"no": False}})["items"] == {}
    assert guide_of({"items": {"$ref": "http://elsewhere/x"}}) == {"items": {}}


@pytest.mark.parametrize("name", ["http://[", "http://[#x", "#/anyOf/" + "1" * 5000, "#/anyOf/01"])
def test_a_reference_that_cannot_be_read_leads_nowhere(name: str) -> None:
    text = {"type": "string"}
    found = guiding({"$id": "http://a/", "anyOf": [{"$ref": name}, {"$id": "http://[y"} | text, text]})
    assert found["anyOf"] == [{}, text, text]
