"""Fill a database as a month of use would: a million ended jobs, 200,000 queued, and what belongs to them.

One tenant has half of everything, 199 share the rest, and the default tenant has twenty old jobs, for which a
plan that walks through everybody's newest rows is the slowest.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

HEAVY: Final = "bench-0"
LIGHT: Final = "default"
_NUM_TENANTS: Final = 200
MODEL: Final = "bench-model"

_STATEMENTS: Final = Path(__file__).with_name("rows.sql")


@dataclass(frozen=True, slots=True)
class Size:
    """How many rows to make."""

    ended: int = 1_000_000
    queued: int = 200_000
    documents: int = 50_000


def fill(url: str, size: Size, *, body: bytes) -> bool:
    """Fill the database unless it is filled; return whether it was empty.

    Args:
        url: of a migrated database, as the owner of its tables.
        size: how much.
        body: of the prompt that all jobs have, as it is stored.
    """
    values = {
        "tenants": _NUM_TENANTS,
        "model": MODEL,
        "ended": size.ended,
        "queued": size.queued,
        "documents": size.documents,
        "body": body,
    }
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as connection:
        if connection.execute("SELECT FROM tenants WHERE name = %s", [HEAVY]).fetchone() is not None:
            return False
        connection.execute("SET LOCAL synchronous_commit = off")
        for statement in _STATEMENTS.read_text().split(";\n"):
            if statement.strip():
                connection.execute(statement.encode(), values)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")  # as autovacuum would have by now
    return True
