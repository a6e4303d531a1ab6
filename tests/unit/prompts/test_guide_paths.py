"""Schemas that a validator would follow along so many paths that nothing else would run are refused."""

from collections.abc import Callable
from typing import Any

import pytest

from jobs.errors import InvalidRequestError
from jobs.prompts import guides

Json = dict[str, Any]
Refer = Callable[[str], Json]
LEVELS = 14  # four references on each: 268 million paths, hours of compiling


def by_pointer(name: str) -> Json:
    return {"$ref": f"#/$defs/{name}"}


def by_anchor(name: str) -> Json:
    return {"$dynamicRef": f"#{name}"}


def by_uri(name: str) -> Json:
    return {"$ref": f"../a/{name}"}


def definitions(levels: int, *, refer: Refer = by_pointer, keyword: str = "allOf") -> Json:
    found: Json = {}
    for level in range(levels):
        name, references = f"d{level}", [refer(f"d{level + 1}")] * 4
        of_all = dict(zip("abcd", references, strict=True)) if keyword == "dependentSchemas" else references
        found[name] = {"$id": f"http://test/a/{name}", "$dynamicAnchor": name, keyword: of_all}
    return {**found, f"d{levels}": {"$id": f"http://test/a/d{levels}", "$dynamicAnchor": f"d{levels}"}}


@pytest.mark.parametrize("refer", [by_pointer, by_anchor, by_uri])
@pytest.mark.parametrize("keyword", ["anyOf", "dependentSchemas"])
def test_references_that_multiply_are_refused_however_they_are_written(refer: Refer, keyword: str) -> None:
    found = definitions(LEVELS, refer=refer, keyword=keyword)
    if refer is by_pointer:  # a part with a URI of its own would have to have the definitions, too
        found = {name: {keyword: each.get(keyword, {})} for name, each in found.items()}
    schema = {"unevaluatedProperties": False, **refer("d0"), "$id": "http://test/a/root", "$defs": found}
    with pytest.raises(InvalidRequestError, match="too many references") as refused:
        guides.json_guide(schema, param="schema")
    assert refused.value.param == "schema"


def test_definitions_that_all_refer_to_all_others_are_refused() -> None:
    names = [f"d{each}" for each in range(12)]
    each_to_all = {name: {"anyOf": [by_pointer(other) for other in names]} for name in names}
    schema = {"unevaluatedItems": False, **by_pointer("d0"), "$defs": each_to_all}
    with pytest.raises(InvalidRequestError, match="too many references"):
        guides.json_guide(schema, param="schema")


def test_what_no_keyword_multiplies_is_taken() -> None:
    plain = {name: {"allOf": each.get("allOf", [])} for name, each in definitions(LEVELS).items()}
    plain[f"d{LEVELS}"] = {"type": "object"}
    assert guides.json_guide({**by_pointer("d0"), "$defs": plain}, param="schema")


def test_a_schema_that_extends_another_by_its_name_is_taken() -> None:
    base = {
        "$id": "./base",
        "unevaluatedProperties": False,
        "properties": {"children": {"items": {"$ref": "#"}}},
        "$dynamicRef": "#more",
        "$defs": {"none": {"$dynamicAnchor": "more"}},
    }
    more = {"$dynamicAnchor": "more", "properties": {"b": {"type": "string"}}}
    schema = {"$id": "http://test/own", "$ref": "./base", "$defs": {"more": more, "base": base}}
    assert guides.json_guide(schema, param="schema")
