"""The values of fields, joined from what parts of a document said: exact for every rule and every end."""

import json
from typing import Any

import pytest

from jobs.extractions.fields import read_fields
from jobs.extractions.joining import Extracted, conclude
from jobs.extractions.replies import MalformedExtractionError, Said, parse_values
from jobs.questions.joining import AskedPart, JobEnd
from jobs.questions.quotes import QuotableText
from jobs.states.summary import JoinRule

TEXT = "The rent is 900 euros.\nIt is due on the first."
PAGES = [0, 23]
BROKEN = {"code": "engine_error", "message": "it broke"}
FAILED = JobEnd(None, BROKEN)
ANYTHING = {"type": "object", "properties": {"a": {}}}


def said(value: Any, quote: str = "") -> JobEnd:  # noqa: ANN401  # JSON
    return JobEnd(json.dumps({"a": {"quote": quote, "value": value}}))


def concluded(*ends: JobEnd, schema: object = None, rule: str = "first") -> Extracted:
    kinds = {"sum": {"type": "number"}, "all": {"type": "array"}}
    fields = read_fields(
        {"type": "object", "properties": {"a": schema or kinds.get(rule, {})}}, {"a": JoinRule(rule)}
    )
    parts = [AskedPart(10 * at, 10 * at + 10, (at + 1, at + 1), end) for at, end in enumerate(ends)]
    return conclude(parts, fields, text=QuotableText(TEXT), page_starts=PAGES)


@pytest.mark.parametrize(
    ("rule", "values", "joined"),
    [
        ("first", [None, "b", "a", "a"], "b"),
        ("first", [None, None], None),
        ("first", [False, True], False),
        ("most_frequent", ["a", "b", None, "b"], "b"),
        ("most_frequent", ["a", "b"], "a"),
        ("most_frequent", ["Acme  Ltd", "Brin", "ACME LTD"], "Acme  Ltd"),
        ("most_frequent", [1, True, True], True),
        ("most_frequent", [2, 3.0, 3], 3.0),
        ("most_frequent", [{"x": 1, "y": "A"}, {"z": 0}, {"y": "a", "x": 1.0}], {"x": 1, "y": "A"}),
        ("all", [["b", "a"], None, [], ["c", "A", "b"]], ["b", "a", "c"]),
        ("all", [[]], []),
        ("all", [[{"n": 1}], [{"n": 1.0}, {"n": 2}]], [{"n": 1}, {"n": 2}]),
        ("sum", [1, None, 2], 3),
        ("sum", [0.1, 0.2], 0.3),
        ("sum", [1, 0.5], 1.5),
        ("sum", [1e300, 1e300], 2e300),
        ("sum", [10**200, 1], 10**200 + 1),
    ],
)
def test_each_rule_joins_what_parts_said(rule: str, values: list[Any], joined: object) -> None:
    (found,) = concluded(*map(said, values), rule=rule).values
    assert found.value == joined
    assert type(found.value) is type(joined)


def test_a_value_has_the_sources_of_all_parts_that_say_it_and_of_no_other() -> None:
    ends = [said("x", "rent is 900 euros"), said("y", "due"), said("X", "not there"), said("x")]
    (found,) = concluded(*ends, rule="most_frequent").values
    assert found.sources == (
        {"quote": "rent is 900 euros", "quote_in_text": True, "start": 4, "end": 21, "pages": [1, 1]},
        {"quote": "not there", "quote_in_text": False, "start": None, "end": None, "pages": [3, 3]},
        {"quote": None, "quote_in_text": None, "start": None, "end": None, "pages": [4, 4]},
    )
    (first,) = concluded(*ends, rule="first").values
    assert [each["quote"] for each in first.sources] == ["rent is 900 euros"]
    (lists,) = concluded(said(["x"], "due on the first"), said([], "rent"), rule="all").values
    assert [(each["quote"], each["pages"]) for each in lists.sources] == [("due on the first", [2, 2])]


def test_sources_are_at_most_a_hundred_and_sums_have_all_values() -> None:
    (found,) = concluded(*(said(1, "rent") for _ in range(150)), rule="sum").values
    assert (found.value, len(found.sources)) == (150, 100)


def test_a_part_that_failed_is_a_gap_and_nothing_is_known_without_any() -> None:
    found = concluded(said(5), FAILED, JobEnd("no json"), rule="sum")
    assert found.values[0].value == 5
    malformed = {"code": "malformed_extraction", "message": MalformedExtractionError().message}
    assert found.gaps == (
        {"start": 10, "end": 20, "pages": [2, 2], "error": BROKEN},
        {"start": 20, "end": 30, "pages": [3, 3], "error": malformed},
    )
    assert concluded(FAILED) == Extracted(error=BROKEN)
    both = concluded(FAILED, FAILED)
    assert (both.error, len(both.gaps)) == (BROKEN, 2)


@pytest.mark.parametrize("rule", ["sum", "all"])
def test_what_no_schema_has_checked_breaks_no_rule(rule: str) -> None:
    (found,) = concluded(said("text"), said({"x": 1}), rule=rule).values
    assert found.value is None


def test_a_row_has_null_where_the_schema_takes_it_and_nothing_otherwise() -> None:
    fields = read_fields(
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["string", "null"]}}}, {}
    )
    empty = {"quote": "", "value": None}
    part = AskedPart(0, 9, None, JobEnd(json.dumps({"a": empty, "b": empty})))
    found = conclude([part], fields, text=None)
    assert found.row(fields) == {"b": None}


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (" a\0\ud800 ", " a\ufffd? "),
        ([{"k\0": ["\0"]}], [{"k\ufffd": ["\ufffd"]}]),
        (10**40, 10**40),
        (0, 0),
        (False, False),
        ("", ""),
    ],
)
def test_values_are_read_as_a_database_takes_them(value: object, stored: object) -> None:
    text = json.dumps({"a": {"quote": " q\0 ", "value": value}})
    assert parse_values(f"Sure:\n{text}", {"a"}) == {"a": Said(stored, "q\ufffd")}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"a": 1}',
        '{"a": {"value": 1}}',
        '{"a": {"quote": "", "value": 1}',
        '{"a": {"quote": 3, "value": 1}}',
        '{"a": {"quote": "", "value": NaN}}',
        '{"a": {"quote": "", "value": -Infinity}}',
        '{"a": {"quote": "", "value": 1e400}}',
        '{"a": {"quote": "", "value": ' + "1" * 302 + "}}",
        '{"a": {"quote": "", "value": ' + "1" * 5000 + "}}",
        '{"a": {"quote": "", "value": ' + "[" * 70 + "]" * 70 + "}}",
        '{"a": {"quote": "", "value": ' + "[" * 99_999,
    ],
)
def test_what_is_no_reply_is_called_malformed(text: str) -> None:
    with pytest.raises(MalformedExtractionError):
        parse_values(text, {"a"})
