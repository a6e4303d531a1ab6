"""The advisory locks of the product: every key is named here, so that no two of them meet by accident.

All but the last are held until the transaction ends: they work behind a transaction pooler. Work that takes
longer than a transaction is claimed by a lease on its row (see `turns`), never by a lock.
"""

from enum import IntEnum
from hashlib import sha256
from typing import Final

from sqlalchemy import ColumnElement, func, literal, select
from sqlalchemy.orm import Session


class Lock(IntEnum):
    """What is done by one transaction at a time. Releases that run side by side share these keys."""

    QUOTA = 0x10C1  # of a tenant: whoever adds to what its unfinished jobs hold
    ACCOUNTS = 0x10C2  # writing to several tenants' accounts; taken after engines' rows
    BATCH = 0x10D1  # of a request: the same batch, created twice
    DOCUMENT = 0x10D2  # of a tenant's bytes: the same document, sent twice
    DESTINATIONS = 0x10D3  # of a tenant: whoever names a new destination of webhooks, or adds an endpoint
    WEBHOOKS = 0x77686F6B  # "whok": claims, so that limits per destination hold over all workers


# "long": upgrades of the schema, one at a time. The one lock that a session holds: migrations commit midway.
MIGRATIONS: Final = 0x6C6F6E67


def hold(session: Session, lock: Lock, *, of: str | None = None) -> None:
    """Wait until no other transaction holds the lock, and hold it until this one ends.

    Args:
        session: the caller's transaction.
        lock: what is done alone.
        of: of which of many; None: there is one. Two that hash alike wait for each other, no more.
    """
    session.execute(select(func.pg_advisory_xact_lock(*_key(lock, of))))


def try_hold(session: Session, lock: Lock) -> bool:
    """Hold the lock until this transaction ends, unless another one holds it.

    Returns:
        False: another transaction holds it.
    """
    return bool(session.scalar(select(func.pg_try_advisory_xact_lock(*_key(lock, None)))))


def hold_key(session: Session, name: str) -> None:
    """Hold the lock of an idempotency key, among all 64-bit keys: those above take a handful of them."""
    number = int.from_bytes(sha256(name.encode()).digest()[:8], signed=True)
    session.execute(select(func.pg_advisory_xact_lock(literal(number))))


def _key(lock: Lock, of: str | None) -> tuple[ColumnElement[int], ...]:
    """Two numbers and one number are keys of separate kinds to Postgres."""
    number = literal(lock.value)
    return (number,) if of is None else (number, func.hashtext(of))
