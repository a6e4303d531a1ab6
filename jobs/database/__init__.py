"""Connections to Postgres, and what every table and transaction is built on."""

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
