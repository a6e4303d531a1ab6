"""How right extracted values are: what became of each fact, and precision and recall."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from bench.extraction.letters import SCHEMA, Fact, Letter

# A letter, and its extraction as the API returns it.
Extracted = tuple[Letter, Mapping[str, Any]]


def report(found: Iterable[Extracted], *, seconds: float) -> str:
    """Write what became of facts, quotes and rows, a line for each field.

    A document whose extraction failed says nothing, so that all of its facts are missing.
    """
    found = list(found)
    counts: dict[str, Counter[str]] = {name: Counter() for name in (*SCHEMA["properties"], "all")}
    quotes: Counter[bool | None] = Counter()
    for letter, extraction in found:
        said = {each["field"]: each for each in extraction["fields"]}
        for name, fact in letter.facts.items():
            each = said.get(name, {"found": False, "value": None, "sources": []})
            quotes.update(source["quote_in_text"] for source in each["sources"])
            outcome = outcome_of(fact, each["value"] if each["found"] else None)
            counts[name][outcome] += 1
            counts["all"][outcome] += 1
    states = Counter(_state(extraction) for _, extraction in found)
    tokens = sum(extraction["usage"]["completion_tokens"] for _, extraction in found)
    rows = ", ".join(f"{num} {state}" for state, num in sorted(states.items()))
    return "\n".join(
        [
            f"{len(found)} documents in {seconds:.0f} s, {tokens} tokens written: {rows}",
            "| field | right | wrong | missing | invented | rightly left out | precision | recall |",
            "|---|---|---|---|---|---|---|---|",
            *(_line(name, each) for name, each in counts.items()),
            f"quotes: {quotes[True]} in the text, {quotes[False]} not, {quotes[None]} values without one",
        ]
    )


def outcome_of(fact: Fact | None, value: object) -> str:
    """Return what became of a fact; None: the document does not say it, or nothing was extracted."""
    if fact is None:
        return "left out" if value is None else "invented"
    if value is None:
        return "missing"
    return "right" if _is_same(fact, value) else "wrong"


def _is_same(fact: Fact, value: object) -> bool:
    """Return True if the value is the fact, up to case and white space."""
    if isinstance(fact, int):
        return fact == value
    return isinstance(value, str) and value.casefold().split() == fact.casefold().split()


def _state(extraction: Mapping[str, Any]) -> str:
    if extraction["state"] != "completed":
        return f"{extraction['state']} ({(extraction['error'] or {}).get('code')})"
    return "valid" if extraction["valid"] else "not valid"


def _line(name: str, of: Counter[str]) -> str:
    said = of["right"] + of["wrong"] + of["invented"]
    there = of["right"] + of["wrong"] + of["missing"]
    shares = (_percent(of["right"], said), _percent(of["right"], there))
    numbers = (of[each] for each in ("right", "wrong", "missing", "invented", "left out"))
    return f"| {' | '.join(map(str, (name, *numbers, *shares)))} |"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "none"
