"""Steps of migrations that let a live system read and write; each may run again after a crash.

They commit what the migration did before them. So a migration that uses them does nothing else, or only what
may be done twice (`IF NOT EXISTS`). A table that live processes write gets:

- columns that are nullable or have a constant default: this changes the catalog alone;
- CHECKs and foreign keys with `postgresql_not_valid=True`, and `validate` in a later migration or after it;
- indexes by `create_index`, a UNIQUE constraint by `create_unique`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import sqlalchemy as sa
from alembic import op
from sqlalchemy.exc import SQLAlchemyError

_IS_INVALID = sa.text("SELECT NOT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")
_HAS_CONSTRAINT = sa.text(
    "SELECT EXISTS (SELECT FROM pg_constraint WHERE conrelid = to_regclass(:table) AND conname = :name)"
)


def create_index(
    name: str,
    table: str,
    columns: Sequence[str | sa.TextClause],
    *,
    where: str | None = None,
    include: Sequence[str] | None = None,
    is_unique: bool = False,
) -> None:
    """Build an index while its table is written.

    Drops what an earlier attempt left half built.
    """
    with _patiently():
        if op.get_bind().scalar(_IS_INVALID, {"name": name}):
            op.drop_index(name, table, postgresql_concurrently=True, if_exists=True)
        op.create_index(
            name,
            table,
            list(columns),
            unique=is_unique,
            postgresql_where=None if where is None else sa.text(where),
            postgresql_include=include,
            postgresql_concurrently=True,
            if_not_exists=True,
        )


def create_unique(name: str, table: str, columns: Sequence[str]) -> None:
    """Add a UNIQUE constraint, building its index while the table is written."""
    if op.get_bind().scalar(_HAS_CONSTRAINT, {"table": table, "name": name}):
        return
    create_index(name, table, columns, is_unique=True)
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} UNIQUE USING INDEX {name}")


def drop_index(name: str, table: str) -> None:
    """Drop an index, if it exists, while its table is read and written."""
    with _patiently():
        op.drop_index(name, table, postgresql_concurrently=True, if_exists=True)


def validate(table: str, constraint: str) -> None:
    """Check the existing rows against a constraint that was added `NOT VALID`."""
    with _patiently():
        op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {constraint}")


def commit() -> None:
    """Commit what the migration did so far, which releases its locks."""
    with op.get_context().autocommit_block():
        pass


def execute(statement: str) -> None:
    """Change rows in a transaction of its own, which locks nothing else."""
    with _patiently():
        op.execute(statement)


@contextmanager
def _patiently() -> Iterator[None]:
    """Run outside of a transaction, without time limits.

    These locks block only other migrations.

    A concurrent index waits for every transaction that is older than it, however long those take.
    """
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        op.execute("SET statement_timeout = 0")
        try:
            yield
        finally:
            with suppress(SQLAlchemyError):  # if the connection is lost, so are its settings
                op.execute("RESET statement_timeout")
                op.execute("RESET lock_timeout")


def refuse_while_unfinished(having: str, *, what: str) -> None:
    """Stop a downgrade while jobs wait that the release before would run as if they asked for less.

    Args:
        having: a condition on rows of `jobs`.
        what: those have that the release before does not know.

    Raises:
        RuntimeError: there are such jobs; let them end, or cancel them, and try again.
    """
    waiting = f"SELECT count(*) FROM jobs WHERE finalized_at IS NULL AND {having}"  # from a migration
    if num := op.get_bind().scalar(sa.text(waiting)):
        raise RuntimeError(
            f"{num} unfinished jobs have {what}, and the release before would answer them without: let them"
            " end or cancel them, then downgrade."
        )
