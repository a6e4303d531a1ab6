"""The fields of a caller's schema: their rules, the form of a reply about them, and what is refused."""

import json
from typing import Any

import jsonschema_rs
import pytest

from jobs.errors import InvalidRequestError
from jobs.extractions.fields import read_fields, reply_guide
from jobs.states.summary import JoinRule

TEXT = {"type": "string"}
REFERRING = {
    "type": "object",
    "properties": {
        "who": {"$ref": "#/$defs/person"},
        "all": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]},
    },
    "$defs": {"person": {"type": "object", "properties": {"name": TEXT}}, "list": {"type": "array"}},
}


def of(**properties: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "rule", "is_nullable"),
    [
        (TEXT, "most_frequent", False),
        ({"type": ["number", "null"]}, "most_frequent", True),
        ({"enum": ["a", None]}, "most_frequent", True),
        ({"const": 3}, "most_frequent", False),
        ({"type": "array"}, "all", False),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, "all", True),
        ({"type": "object"}, "first", False),
        ({"type": ["string", "number"]}, "first", False),
        ({}, "first", False),
        ({"type": "integer", "x-longbatch-join": "sum"}, "sum", False),
        ({"type": "string", "x-longbatch-join": "first"}, "first", False),
    ],
)
def test_a_field_has_the_rule_of_its_type_unless_it_names_one(
    schema: dict[str, Any], rule: str, *, is_nullable: bool
) -> None:
    (field,) = read_fields(of(a=schema), {})
    assert (field.rule, field.is_nullable) == (rule, is_nullable)
    assert "x-longbatch-join" not in field.schema


def test_a_rule_of_the_request_goes_before_one_of_the_schema() -> None:
    (field,) = read_fields(of(a={"type": "number", "x-longbatch-join": "sum"}), {"a": JoinRule.FIRST})
    assert field.rule is JoinRule.FIRST


def test_fields_keep_the_order_of_the_caller_and_their_definitions() -> None:
    fields = read_fields(REFERRING, {})
    assert [(each.name, each.rule.value) for each in fields] == [("who", "first"), ("all", "all")]
    guide = reply_guide(REFERRING, fields)
    assert [*guide.schema["properties"]] == ["who", "all"]
    check = jsonschema_rs.validator_for(guide.schema)
    quoted = {"quote": "q", "value": {"name": "Ada"}}
    assert check.is_valid({"who": quoted, "all": {"quote": "", "value": None}})
    assert not check.is_valid({"who": quoted}), "every field is told of"
    assert not check.is_valid({"who": quoted | {"value": {"name": 3}}, "all": quoted | {"value": []}})
    assert json.loads(guide.content)["required"] == ["who", "all"]


@pytest.mark.parametrize(
    ("schema", "joins", "param", "says"),
    [
        ({}, {}, "schema", '"type": "object"'),
        ({"type": "object"}, {}, "schema", "properties"),
        ({"type": "array", "properties": {"a": TEXT}}, {}, "schema", "object"),
        (of(**{f"f{number}": TEXT for number in range(101)}), {}, "schema", "100 properties"),
        (of(a={"description": "w" * 20_001}), {}, "schema", "20000 characters"),
        (of(a=True), {}, "schema", "a: must be an object"),
        (of(**{"a\nb": TEXT}), {}, "schema", "printable"),
        (of(**{"n" * 65: TEXT}), {}, "schema", "1 to 64"),
        (of(a={"$ref": "#/properties/b"}, b=TEXT), {}, "schema", "$ref must lead to $defs"),
        (of(a={"type": "array", "items": {"$ref": "#"}}), {}, "schema", "$ref must lead to $defs"),
        (of(a={"type": "string", "x-longbatch-join": "last"}), {}, "schema", "a: x-longbatch-join"),
        (of(a=TEXT), {"b": JoinRule.FIRST}, "joins.b", "no such property"),
        (of(a=TEXT), {"a": JoinRule.SUM}, "joins.a", "integer or number"),
        (of(a=TEXT), {"a": JoinRule.ALL}, "joins.a", "array"),
        (of(a={}), {"a": JoinRule.SUM}, "joins.a", "integer or number"),
    ],
)
def test_what_cannot_be_extracted_is_refused_with_field_and_limit(
    schema: dict[str, Any], joins: dict[str, JoinRule], param: str, says: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_fields(schema, joins)
    assert refused.value.param == param
    assert says in refused.value.message


def test_a_definition_that_refers_to_itself_alone_has_no_type() -> None:
    schema = {**of(a={"$ref": "#/$defs/x"}), "$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}]}}}
    (field,) = read_fields(schema, {})
    assert field.rule is JoinRule.FIRST


def test_definitions_that_refer_to_each_other_many_times_are_each_read_once() -> None:
    definitions = {
        name: {"anyOf": [*[{"$ref": f"#/$defs/{other}"}] * 50, TEXT]} for name, other in ("xy", "yx")
    }
    schema = {**of(a={"$ref": "#/$defs/x"}), "$defs": definitions}
    (field,) = read_fields(schema, {})
    assert field.rule is JoinRule.MOST_FREQUENT, "walking every path of references would never end"
