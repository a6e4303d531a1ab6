"""What a pass over all sealed values found and did."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

# The name, in place of a key's, of what is not sealed.
PLAIN: Final = "plain"
_MOST_NAMED: Final = 1000  # values that cannot be opened; the rest is counted


@dataclass(frozen=True, slots=True)
class UnreadableValue:
    """A value that no configured key opens.

    Attributes:
        table: or where it is otherwise.
        row: its primary key.
        column: in the table.
        key: the name of the key that sealed it; None: it has bytes that were changed, or none.
    """

    table: str
    row: str
    column: str
    key: str | None


@dataclass(slots=True)
class Tally:
    """The values seen so far, as they are now.

    Attributes:
        values: how many are under each key, by table.
        num_resealed: sealed anew, or opened.
        num_left: still to do: another transaction held the row.
        num_unreadable: cannot be opened; `unreadable` names the first of them.
    """

    values: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    num_resealed: int = 0
    num_left: int = 0
    num_unreadable: int = 0
    unreadable: list[UnreadableValue] = field(default_factory=list)

    def note_unreadable(self, value: UnreadableValue) -> None:
        """Count a value that cannot be opened, and name it while there are few."""
        self.num_unreadable += 1
        if len(self.unreadable) < _MOST_NAMED:
            self.unreadable.append(value)

    def by_key(self) -> Counter[str]:
        """Count the values under each key, in all tables."""
        return sum(self.values.values(), Counter())
