"""The statements that a process sends to its database, and what the database does for each."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import psycopg
from sqlalchemy import Connection, Engine, event

# Statements that read, and can be explained again and again.
_READS: Final = ("SELECT", "WITH")
_ENTER: Final = "SELECT set_config("
_REPEATS: Final = 3


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as the driver got it.

    Attributes:
        transaction: counts transactions.
        at: by the monotonic clock, in seconds.
    """

    transaction: int
    sql: str
    values: Any
    at: float

    @property
    def is_entrance(self) -> bool:
        """Whether it only says for whom the transaction reads."""
        return self.sql.lstrip().startswith(_ENTER)


@dataclass(frozen=True, slots=True)
class Cost:
    """What the database did for a statement.

    Attributes:
        ms: planning and execution, the best of a few, everything in memory.
        widest: the step of its plan that looked at most rows, and how many.
        scans: tables read whole, with their rows.
    """

    sql: str
    ms: float
    widest: str
    scans: Sequence[str]


@dataclass(slots=True)
class Recorder:
    """All statements of this process, in order."""

    statements: list[Statement] = field(default_factory=list)

    def take(self) -> list[Statement]:
        """Return what was recorded since the last call."""
        taken, self.statements = self.statements, []
        return taken


@contextmanager
def recording() -> Iterator[Recorder]:
    """Record the statements of all of this process's connections for the block."""
    recorder = Recorder()
    numbers = count()

    def begin(connection: Connection) -> None:
        connection.info["bench_transaction"] = next(numbers)

    def note(connection: Connection, _cursor: object, sql: str, values: object, *_: object) -> None:
        number = connection.info.get("bench_transaction", -1)
        recorder.statements.append(Statement(number, sql, values, time.monotonic()))

    event.listen(Engine, "begin", begin)
    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield recorder
    finally:
        event.remove(Engine, "begin", begin)
        event.remove(Engine, "before_cursor_execute", note)


def explain(url: str, statements: Sequence[Statement]) -> list[Cost]:
    """Run the reads among these statements again, each in a transaction entered as its own was."""
    entrances = {each.transaction: each for each in statements if each.is_entrance}
    costs = []
    # Values within the text, so that the planner sees them as it does for a statement that is not prepared.
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as connection:
        for each in statements:
            if each.is_entrance or not each.sql.lstrip().upper().startswith(_READS):
                continue
            entrance = entrances.get(each.transaction)
            if entrance is not None:
                connection.execute(entrance.sql.encode(), entrance.values)
            costs.append(_cost(connection, each))
            connection.rollback()
    return costs


def _cost(connection: psycopg.Connection, statement: Statement) -> Cost:
    found: list[Mapping[str, Any]] = []
    for _ in range(_REPEATS):
        explained = f"EXPLAIN (ANALYZE, TIMING OFF, BUFFERS OFF, FORMAT JSON) {statement.sql}"
        row = connection.execute(explained.encode(), statement.values or None).fetchone()
        assert row is not None  # noqa: S101  # EXPLAIN returns a row
        found.append(row[0][0])
    best = min(found, key=_ms)
    nodes = [(_rows(node), node) for node in _nodes(best["Plan"])]
    most, widest = max(nodes, key=lambda each: each[0])
    scans = [f"{node['Relation Name']} {rows:,}" for rows, node in nodes if node["Node Type"] == "Seq Scan"]
    return Cost(" ".join(statement.sql.split()), _ms(best), f"{_name(widest)} {most:,}", scans)


def _ms(explained: Mapping[str, Any]) -> float:
    return float(explained["Planning Time"]) + float(explained["Execution Time"])


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from _nodes(each)


def _rows(node: Mapping[str, Any]) -> int:
    """Count the rows that the step read, those included that it threw away."""
    thrown = sum(float(value) for name, value in node.items() if name.startswith("Rows Removed by"))
    return round((float(node["Actual Rows"]) + thrown) * float(node["Actual Loops"]))


def _name(node: Mapping[str, Any]) -> str:
    return f"{node['Node Type']} {node.get('Index Name') or node.get('Relation Name') or ''}".strip()
