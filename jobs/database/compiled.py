"""Statements as libpq takes them, compiled once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import TextClause, TextualSelect
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.types import TypeEngine

from jobs.database.packed_arrays import holds_content, packer_of
from jobs.database.sealed_columns import Sealed

Statement = TextClause | TextualSelect | Insert | ReturningInsert[Any]

_MAX_COMPILED: Final = 1000
_DIALECT: Final = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, eq=False)
class CompiledStatement:
    """A statement with numbered parameters.

    Attributes:
        sql: its text.
        types: oids of its parameters.
        packers: what writes each parameter: its name, its type if it is sealed, and a function.
        sealed: which of the columns that it returns are sealed.
    """

    sql: bytes
    types: Sequence[int]
    packers: Sequence[tuple[str, TypeEngine[Any] | None, Callable[[Any], bytes]]]
    sealed: Sequence[tuple[int, Sealed]]


@lru_cache(maxsize=_MAX_COMPILED)
def compiled(statement: Statement) -> CompiledStatement:
    """Compile a statement whose parameters have types."""
    written_out = statement.compile(dialect=_DIALECT)
    kinds = [(name, written_out.binds[name].type) for name in written_out.positiontup or []]
    written = [packer_of(kind) for _, kind in kinds]
    packers = [
        (name, kind if holds_content(kind) else None, pack)
        for (name, kind), (_, pack) in zip(kinds, written, strict=True)
    ]
    returned = enumerate(getattr(statement, "exported_columns", ()))
    sealed = [(place, each.type) for place, each in returned if isinstance(each.type, Sealed)]
    return CompiledStatement(str(written_out).encode(), [oid for oid, _ in written], packers, sealed)
