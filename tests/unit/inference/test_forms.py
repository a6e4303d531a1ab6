"""Whether an answer has its form, found out in processes that a costly schema may end."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from jobs.ids import uuid7
from jobs.prompts.confined.answer_faults import find_fault
from jobs.prompts.guides import Guide, GuideKind
from worker.guides.answers import unfenced
from worker.guides.checker import TOO_COSTLY, FormChecker

PERSON = {
    "type": "object",
    "properties": {"age": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["age"],
}


def by_schema(schema: Any) -> Guide:  # noqa: ANN401  # JSON
    return Guide(GuideKind.JSON, json.dumps(schema))


# Its check takes time that doubles with each step.
COSTLY = by_schema(
    {
        "$defs": {
            **{f"s{n}": {"anyOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(60)},
            "s60": {"type": "null"},
        },
        "$ref": "#/$defs/s0",
    }
)


@pytest.mark.parametrize(
    ("guide", "right", "wrong"),
    [
        (by_schema(PERSON), '{"age": 3, "tags": ["a"]}', '{"age": "3"}'),
        (by_schema(PERSON), ' {"age": 3} ', '{"tags": []}'),
        (by_schema({"type": "object"}), "{}", "[]"),
        (by_schema({"type": "number"}), "1e3", "NaN"),
        (by_schema({"pattern": "^(a+)+$"}), '"aaa"', json.dumps("a" * 100_000 + "b")),
        (by_schema({}), "[" * 50 + "]" * 50, "[" * 100_000),
        (by_schema({"type": "object"}), "{}", '{"cut": '),
        (Guide(GuideKind.REGEX, "a|bc"), "bc", "abc"),
        (Guide(GuideKind.REGEX, "(a+)+"), "aaa", "a" * 100_000 + "b"),
        (Guide(GuideKind.CHOICE, '["ja", "nein"]'), "nein", "jein"),
    ],
)
def test_an_answer_has_its_form_or_a_fault_with_a_reason(guide: Guide, right: str, wrong: str) -> None:
    assert find_fault(guide, right) is None
    fault = find_fault(guide, wrong)
    assert fault
    assert len(fault) < 400


def test_a_fault_names_the_place() -> None:
    assert (find_fault(by_schema(PERSON), '{"age": 1, "tags": ["a", 2]}') or "").startswith("at /tags/1: ")


@pytest.mark.parametrize(
    ("guide", "answer", "named"),
    [
        (by_schema(PERSON), '{"age": "Oslo"}', "'type'"),
        (by_schema({"enum": ["Paris"]}), '"Oslo"', "'enum'"),
        (
            by_schema({"properties": {}, "additionalProperties": False}),
            '{"Oslo": 1}',
            "'additionalProperties'",
        ),
        (by_schema({"properties": {"Oslo": False}}), '{"Oslo": 1}', "'falseSchema'"),
        (by_schema({}), '{"Oslo": NaN}', "NaN"),
        (by_schema({}), "Oslo", "JSON"),
        (Guide(GuideKind.REGEX, "Paris"), "Oslo", "expression"),
        (Guide(GuideKind.CHOICE, '["Paris"]'), "Oslo", "choices"),
    ],
)
def test_a_fault_need_not_quote_the_answer_nor_its_form(guide: Guide, answer: str, named: str) -> None:
    fault = find_fault(guide, answer, quotes=False)
    assert fault is not None
    assert named in fault
    assert not {"Oslo", "Paris"} & set(fault.replace("'", " ").replace('"', " ").split())


def test_a_grammar_is_the_engine_s_own_matter() -> None:
    assert find_fault(Guide(GuideKind.GRAMMAR, "root ::= x"), "anything") is None


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ("\n```\nred\n```\n", "red"),
        ('{"a": "```"}', '{"a": "```"}'),
        ("See:\n```json\n{}\n```", "See:\n```json\n{}\n```"),
    ],
)
def test_a_whole_answer_in_a_block_of_code_is_taken_out_of_it(text: str, bare: str) -> None:
    assert unfenced(text) == bare


@pytest.fixture
def checker() -> Iterator[FormChecker]:
    found = FormChecker()
    yield found
    found.close()


def test_a_costly_check_ends_alone(checker: FormChecker) -> None:
    """Its tenant's next check waits for it, and no other tenant's does."""
    hostile, other = uuid7(), uuid7()

    async def check() -> tuple[list[str | None], list[str]]:
        order: list[str] = []

        async def ask(name: str, guide: Guide, tenant_id: Any) -> str | None:  # noqa: ANN401
            found = await checker.fault_of("{}", guide, tenant_id=tenant_id)
            order.append(name)
            return found

        faults = await asyncio.gather(
            ask("costly", COSTLY, hostile),
            ask("after it", by_schema({}), hostile),
            ask("beside it", by_schema({}), other),
        )
        return list(faults), order

    faults, order = asyncio.run(check())
    assert faults == [TOO_COSTLY, None, None]
    assert order == ["beside it", "costly", "after it"]
