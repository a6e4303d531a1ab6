"""Measurements against their goals: the lines of the table of targets, printed and stored as JSON."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from operator import ge, le, lt
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_HEADINGS = ("target", "workload", "measured", "goal", "", "peer", "scale", "seeds")
MARKS = {True: "met", False: "MISSED", None: ""}
_SIGNS: dict[str, Callable[[float, float], bool]] = {">=": ge, "<=": le, "<": lt}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        target: its number and name; without a number it is shown for comparison.
        workload: its name, and what of it.
        measured: the median over the seeds.
        goal: limit to reach; empty: none.
        met: True if the goal is reached; None without a goal.
        peer: what it was measured against.
        scale: how much faster than the modelled engine it ran.
        seeds: number of workloads, or of repetitions.
    """

    target: str
    workload: str
    measured: float
    goal: str
    met: bool | None
    peer: str
    scale: str
    seeds: int


def judge(
    target: str, workload: str, values: Sequence[float], *, peer: str, scale: str, seeds: int, goal: str = ""
) -> Row:
    """Compare the median of these values with a goal such as `>= 0.96` or `<= 1.1`."""
    measured = round(median(values), 4)
    return Row(target, workload, measured, goal, is_met(measured, goal), peer, scale, seeds)


def is_met(measured: float, goal: str) -> bool | None:
    """Compare with a goal such as `>= 0.96`, `<= 1.1` or `< 100`; return None without one."""
    if not goal:
        return None
    sign, limit = goal.split()
    return _SIGNS[sign](measured, float(limit.replace(",", "")))


def print_table(rows: Iterable[Row], title: str) -> None:
    """Print the table on standard output."""
    table = Table(title=title)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading in {"measured", "goal", "seeds"} else "left")
    for row in rows:
        cells = (
            row.target,
            row.workload,
            f"{row.measured:.4f}",
            row.goal,
            MARKS[row.met],
            row.peer,
            row.scale,
        )
        table.add_row(*cells, str(row.seeds))
    Console(width=None if Console().is_terminal else 150).print(table)


def write_json(rows: Iterable["DataclassInstance"], file: Path | None) -> None:
    """Write the rows as a list of objects, one a line; without a file, do nothing."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    file.write_text(f"[\n{lines}\n]\n")
