"""Letters about leases, made from a seed: the facts that each says are known."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

# Few fields with short values, as a small model on two busy cores writes three tokens a second.
SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "tenant": {"type": ["string", "null"], "maxLength": 40, "description": "Name of the tenant"},
        "city": {"type": ["string", "null"], "maxLength": 40, "description": "City of the flat"},
        "rent": {"type": ["integer", "null"], "description": "Monthly rent in euros"},
    },
    "required": ["tenant", "city", "rent"],
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
_NUM_OTHERS: Final = 3
_SHARE_MISSING: Final = 0.2

Fact = str | int


@dataclass(frozen=True, slots=True)
class Letter:
    """A document with its facts; None: the document does not say it."""

    text: str
    facts: Mapping[str, Fact | None]


def letters(num: int, *, seed: int) -> list[Letter]:
    """Make so many documents; the first of them are the same for every number."""
    rng = random.Random(seed)  # noqa: S311  # repeatable
    return [_letter(rng) for _ in range(num)]


def _letter(rng: random.Random) -> Letter:
    facts: dict[str, Fact | None] = {
        "tenant": f"{rng.choice(_FIRST)} {rng.choice(_LAST)}",
        "city": rng.choice(_CITIES),
        "rent": rng.randrange(400, 1900, 5),
    }
    for name in facts:
        if rng.random() < _SHARE_MISSING:
            facts[name] = None
    said = [rng.choice(_SAYING[name]).format(value) for name, value in facts.items() if value is not None]
    sentences = [*said, *rng.sample(_OTHERS, _NUM_OTHERS)]
    rng.shuffle(sentences)
    return Letter(" ".join(["About the lease.", *sentences]), facts)
