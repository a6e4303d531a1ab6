"""`python -m bench.extraction`: a table from 50 documents whose facts are known, by a small real model.

Each document is a letter about a lease, made from a seed: facts in sentences of several wordings, among
others that say nothing of them; every fifth fact is left out. Prints for each field how many values are
right, of those said (precision) and of those that the documents have (recall), and how many quotes are in
the text.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.figures import running_stack, until
from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf

_CONTEXT: Final = 4096
SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "tenant": {"type": ["string", "null"], "description": "Name of the person who rents"},
        "city": {"type": ["string", "null"], "description": "City of the flat"},
        "rent": {"type": ["number", "null"], "description": "Monthly rent in euros"},
        "deposit": {"type": ["number", "null"], "description": "Deposit in euros"},
        "notice": {"type": ["integer", "null"], "description": "Period of notice in months"},
    },
    "required": ["tenant", "city", "rent", "deposit", "notice"],
}
_FIRST: Final = ("Ada", "Boris", "Clara", "Deniz", "Emil", "Farah", "Greta", "Hugo", "Irina", "Jonas")
_LAST: Final = (
    "Albers",
    "Brandt",
    "Costa",
    "Dorn",
    "Eklund",
    "Farkas",
    "Gruber",
    "Horvat",
    "Ilves",
    "Jansen",
)
_CITIES: Final = ("Porto", "Leipzig", "Gdansk", "Turin", "Malmo", "Ghent", "Graz", "Brno", "Lyon", "Tartu")
# Of each field, sentences that say it.
_SAYING: Final[Mapping[str, tuple[str, ...]]] = {
    "tenant": ("The flat is let to {}.", "{} rents the flat from the first of May.", "The tenant is {}."),
    "city": ("The flat is in {}.", "It lies on the third floor of a house in {}.", "Place of the flat: {}."),
    "rent": ("The monthly rent is {} euros.", "Rent of {} euros is due each month.", "Rent: EUR {} a month."),
    "deposit": ("A deposit of {} euros is paid before the keys are handed over.", "Deposit: {} euros."),
    "notice": ("Either side may end the lease with {} months' notice.", "The period of notice is {} months."),
}
_OTHERS: Final = (
    "The kitchen was painted last spring, and the windows were cleaned.",
    "Pets are welcome if the neighbours agree.",
    "The cellar is shared with the shop on the ground floor.",
    "Bicycles stand in the yard, next to the old chestnut tree.",
    "Please keep the front door closed at night.",
    "The heating is serviced every autumn by a firm of the owner's choice.",
    "A key to the letter box hangs behind the entrance.",
)


@dataclass(frozen=True, slots=True)
class Letter:
    """A document with its facts; None: the document does not say it."""

    text: str
    facts: Mapping[str, str | int | None]


def letters(num: int, *, seed: int) -> list[Letter]:
    """Make so many documents."""
    rng = random.Random(seed)  # noqa: S311  # repeatable
    return [_letter(rng) for _ in range(num)]


def _letter(rng: random.Random) -> Letter:
    facts: dict[str, str | int | None] = {
        "tenant": f"{rng.choice(_FIRST)} {rng.choice(_LAST)}",
        "city": rng.choice(_CITIES),
        "rent": rng.randrange(400, 1900, 5),
        "deposit": rng.randrange(1905, 4000, 5),
        "notice": rng.randrange(2, 13),
    }
    for name in facts:
        if rng.random() < 0.2:  # every fifth fact is missing
            facts[name] = None
    said = [rng.choice(_SAYING[name]).format(value) for name, value in facts.items() if value is not None]
    sentences = [*said, *rng.sample(_OTHERS, 5)]
    rng.shuffle(sentences)
    return Letter(" ".join(["About the lease.", *sentences]), facts)


def is_right(fact: str | int, value: object) -> bool:
    """Return True if the value is the fact, up to case and white space."""
    if isinstance(fact, int):
        return fact == value
    return isinstance(value, str) and value.casefold().split() == fact.casefold().split()


def report(found: list[tuple[Letter, Mapping[str, Any]]], *, seconds: float) -> str:
    """Write precision and recall of each field and of all, and what became of quotes and rows."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in (*SCHEMA["properties"], "all")}
    quotes: Counter[bool | None] = Counter()
    for letter, extraction in found:
        said = {each["field"]: each for each in extraction["fields"]}
        for name, fact in letter.facts.items():
            each = said.get(name, {"found": False, "value": None, "sources": []})
            quotes.update(source["quote_in_text"] for source in each["sources"])
            for counted in (counts[name], counts["all"]):
                counted["has"] += fact is not None
                counted["said"] += each["found"]
                counted["right"] += fact is not None and is_right(fact, each["value"])
    states = Counter(extraction["state"] for _, extraction in found)
    lines = [f"{len(found)} documents in {seconds:.0f} s: {dict(states)}", "field precision recall"]
    lines += [
        f"{name}: {of['right']} of {of['said']} said, {of['right'] / max(1, of['said']):.0%};"
        f" of {of['has']} in the documents, {of['right'] / max(1, of['has']):.0%}"
        for name, of in counts.items()
    ]
    lines.append(f"quotes: {quotes[True]} in the text, {quotes[False]} not, {quotes[None]} missing")
    return "\n".join(lines)


def measured(num: int, *, seed: int, slots: int, seconds: float) -> list[tuple[Letter, Mapping[str, Any]]]:
    """Extract the fields of all documents on a stack of its own."""
    made = letters(num, seed=seed)
    engine = LlamaOptions(gguf=bundled_gguf(), context=_CONTEXT, slots=slots, threads=1)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_stack(Path(folder) / "longbatch", engine) as (_, http),
    ):
        sent = [
            http.post("/v1/documents", content=each.text.encode(), params={"filename": f"{number}.txt"})
            for number, each in enumerate(made)
        ]
        ids = [each.raise_for_status().json()["id"] for each in sent]
        asked = {"documents": ids, "schema": SCHEMA}
        listed = http.post("/v1/extractions", json=asked).raise_for_status().json()["data"]

        def ended() -> list[Any]:
            page = http.get("/v1/extractions", params={"limit": 100, "values": True}).raise_for_status()
            by_id = {each["id"]: each for each in page.json()["data"]}
            is_done = all(each["state"] not in ("preparing", "running") for each in by_id.values())
            return [by_id[each["id"]] for each in listed] if is_done else []

        return [*zip(made, until(ended, seconds=seconds, every=2.0), strict=True)]


def main() -> None:
    """Extract, and print how right the values are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slots", type=int, default=2, help="requests at once")
    parser.add_argument("--seconds", type=float, default=3600, help="give up after so long")
    parser.add_argument("--json", type=Path, help="write each document and what was found here")
    options = parser.parse_args()
    began = time.monotonic()
    found = measured(options.documents, seed=options.seed, slots=options.slots, seconds=options.seconds)
    sys.stdout.write(f"{report(found, seconds=time.monotonic() - began)}\n")
    if options.json:
        lines = ({"text": letter.text, "facts": letter.facts, "found": each} for letter, each in found)
        options.json.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


if __name__ == "__main__":
    main()
