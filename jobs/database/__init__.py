"""Connections to Postgres, and the base of every table and transaction."""

from jobs.database.connection import (
    database_now,
    make_async_engine,
    make_engine,
    make_sessions,
    sqlalchemy_url,
    transaction,
)

__all__ = [
    "database_now",
    "make_async_engine",
    "make_engine",
    "make_sessions",
    "sqlalchemy_url",
    "transaction",
]
