"""Connections to Postgres, and the base of every table and transaction."""

from jobs.database.connection import (
    database_now,
    is_full,
    make_async_engine,
    make_engine,
    make_sessions,
    note_ended,
    note_outcomes,
    sqlalchemy_url,
    take_ended,
    transaction,
)
