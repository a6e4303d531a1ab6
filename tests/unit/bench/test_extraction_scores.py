"""What `make extraction` prints of values whose facts are known."""

from typing import Any

import pytest

from bench.extraction.letters import SCHEMA, Letter, letters
from bench.extraction.scores import outcome_of, report


def extraction(**values: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    fields = [
        {
            "field": name,
            "found": name in values,
            "value": values.get(name),
            "sources": [{"quote_in_text": True}] if name in values else [],
        }
        for name in SCHEMA["properties"]
    ]
    usage = {"completion_tokens": 10}
    return {"state": "completed", "error": None, "valid": True, "fields": fields, "usage": usage}


@pytest.mark.parametrize(
    ("fact", "value", "outcome"),
    [
        ("Ada Brandt", "ada  brandt", "right"),
        ("Ada Brandt", "Ada", "wrong"),
        (900, 900.0, "right"),
        (900, "900", "wrong"),
        (900, None, "missing"),
        (None, 3, "invented"),
        (None, None, "left out"),
    ],
)
def test_a_value_is_judged_by_the_fact(fact: str | int | None, value: object, outcome: str) -> None:
    assert outcome_of(fact, value) == outcome


def test_shares_are_of_what_was_said_and_of_what_there_is() -> None:
    letter = Letter("", {"tenant": "Ada", "city": "Graz", "rent": None})
    lost = {**extraction(), "state": "failed", "error": {"code": "invalid_output"}, "fields": []}
    found = extraction(tenant="Ada", city="Lyon", rent=3)
    lines = report([(letter, found), (letter, lost)], seconds=7.2).splitlines()
    assert lines[0] == "2 documents in 7 s, 20 tokens written: 1 failed (invalid_output), 1 valid"
    assert lines[3:] == [
        "| tenant | 1 | 0 | 1 | 0 | 0 | 100% | 50% |",
        "| city | 0 | 1 | 1 | 0 | 0 | 0% | 0% |",
        "| rent | 0 | 0 | 0 | 1 | 1 | 0% | none |",
        "| all | 1 | 1 | 2 | 1 | 1 | 33% | 25% |",
        "quotes: 3 in the text, 0 not, 0 values without one",
    ]


def test_every_letter_says_its_facts_and_no_others() -> None:
    made = letters(50, seed=1)
    assert made[:10] == letters(10, seed=1)
    for letter in made:
        assert all(str(fact) in letter.text for fact in letter.facts.values() if fact is not None)
    facts = [fact for letter in made for fact in letter.facts.values()]
    assert 0 < facts.count(None) < len(facts) / 2
