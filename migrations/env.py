"""Alembic's entry: one connection, short lock waits, one migration at a time."""

from alembic import context
from sqlalchemy import create_engine, pool, text
from sqlalchemy.engine import Connection

from jobs.database import sqlalchemy_url
from jobs.models import Base
from jobs.settings import load_database
from migrations import isolation

# Any constant of our own: two starting processes must not migrate at once.
_ADVISORY_LOCK = 0x6C6F6E67  # "long"


def run(connection: Connection) -> None:
    """Every pending step in one transaction; DDL that cannot get its lock in 5 s gives up."""
    context.configure(connection=connection, target_metadata=Base.metadata, compare_server_default=True)
    with context.begin_transaction():
        connection.execute(text("SET LOCAL lock_timeout = '5s'"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        context.run_migrations()
        isolation.apply(connection)


def main() -> None:
    """Runs on the connection that the caller gave, else on LONGBATCH_DATABASE__URL."""
    given = context.config.attributes.get("connection")
    if given is not None:
        run(given)
        return
    engine = create_engine(sqlalchemy_url(load_database()), poolclass=pool.NullPool)
    with engine.connect() as connection:
        run(connection)


main()
