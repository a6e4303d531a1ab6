"""The advisory locks of the product: every key is named here, so that no two collide by accident.

All but the last are held until the transaction ends, so they work through a transaction pooler. Work that
takes longer than a transaction is claimed by a lease on its row (see `turns`), never by a lock.
"""

from enum import IntEnum
from hashlib import sha256
from typing import Final

from sqlalchemy import ColumnElement, func, literal, select
from sqlalchemy.orm import Session

from jobs.database.statements import Statement


class Lock(IntEnum):
    """What only one transaction does at a time. Releases that run side by side share these keys."""

    QUOTA = 0x10C1  # per tenant: adding to what its unfinished jobs hold
    ACCOUNTS = 0x10C2  # marking tenants' accounts active or idle; taken after the engine's row
    BATCH = 0x10D1  # per request: creating the same batch twice
    DOCUMENT = 0x10D2  # per tenant and content: uploading the same document twice
    DESTINATIONS = 0x10D3  # per tenant: naming a new webhook destination, or adding an endpoint
    KEY_QUOTA = 0x10C3  # per key that has quotas: adding to what its unfinished jobs hold; taken before QUOTA
    WEBHOOKS = 0x77686F6B  # "whok": claims, so that limits per destination hold across workers


# "long": upgrades of the schema. The only lock that a session holds, as migrations commit midway.
MIGRATIONS: Final = 0x6C6F6E67


def hold(session: Session, lock: Lock, *, of: str | None = None) -> None:
    """Wait until no other transaction holds the lock, and hold it until this one ends.

    Args:
        session: the caller's transaction.
        lock: what only one transaction may do.
        of: which one, if there are many, such as a tenant; None: there is one. Two whose names hash alike
            wait for each other, which costs time and nothing more.
    """
    session.execute(select(func.pg_advisory_xact_lock(*_key(lock, of))))


def try_hold(session: Session, lock: Lock) -> bool:
    """Hold the lock until this transaction ends, unless another one holds it.

    Returns:
        False if another transaction holds it.
    """
    return bool(session.scalar(select(func.pg_try_advisory_xact_lock(*_key(lock, None)))))


# What `hold` executes for one of many, as a statement: with `lock` and `of`.
HOLD_ONE_OF: Final = Statement("SELECT pg_advisory_xact_lock(%(lock)s::integer, hashtext(%(of)s::text))")


def hold_key(session: Session, name: str) -> None:
    """Hold the lock of an idempotency key.

    These locks use all 64-bit keys; those above occupy only a handful of them.
    """
    number = int.from_bytes(sha256(name.encode()).digest()[:8], signed=True)
    session.execute(select(func.pg_advisory_xact_lock(literal(number))))


def _key(lock: Lock, of: str | None) -> tuple[ColumnElement[int], ...]:
    """Make the key: to Postgres one number and two numbers are keys of separate kinds."""
    number = literal(lock.value)
    return (number,) if of is None else (number, func.hashtext(of))
