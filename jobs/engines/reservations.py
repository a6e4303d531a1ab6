"""Slots and blocks reserved on an engine: held by a stream, then closed, or draining until it is done."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from jobs.engines import served_tokens
from jobs.models import Reservation

_SETTLED = (Reservation.job_id, Reservation.output_tokens, Reservation.state)


def close(session: Session, lease_id: UUID, *, produced: int | None = None) -> None:
    """Delete the reservation, as its request ended or never reached the engine.

    Args:
        session: the caller's transaction.
        lease_id: whose reservation; nothing happens if it is already deleted.
        produced: tokens that the job has generated in all; None: what its row says.
    """
    deleted = delete(Reservation).where(Reservation.lease_id == lease_id).returning(*_SETTLED).cte("deleted")
    held = select(deleted).where(deleted.c.state == "held").cte("held")
    served_tokens.settle(session, held, produced=produced)


def drain(session: Session, lease_id: UUID) -> None:
    """Let the reservation drain: it still counts, but no worker holds it.

    The engine may go on generating for a while.
    """
    drains = (
        update(Reservation)
        .where(Reservation.lease_id == lease_id, Reservation.state == "held")
        .values(state="draining", draining_since=func.clock_timestamp())
        .returning(*_SETTLED)
    )
    served_tokens.settle(session, drains.cte("drains"))


def draining(session: Session, engine_name: str, *, before: datetime | None = None) -> Sequence[Reservation]:
    """Return the draining reservations of an engine, oldest first.

    With `before`, only those that began to drain by then.
    """
    query = select(Reservation).where(Reservation.engine_name == engine_name, Reservation.state == "draining")
    if before is not None:
        query = query.where(Reservation.draining_since <= before)
    return session.scalars(query.order_by(Reservation.draining_since)).all()


def drained(session: Session, lease_ids: Sequence[UUID]) -> int:
    """Delete these draining reservations, as the engine is known to be done with them.

    Returns:
        How many were deleted.
    """
    deleted = session.execute(
        delete(Reservation)
        .where(Reservation.lease_id.in_(lease_ids), Reservation.state == "draining")
        .returning(Reservation.lease_id)
    )
    return len(deleted.all())


def convert(session: Session, engine_name: str, *, old_tokens: int, new_tokens: int) -> None:
    """Convert the engine's reservations to blocks of another size.

    They cover as many tokens as before.

    Args:
        session: the caller's transaction, which holds the engine's row.
        engine_name: whose reservations.
        old_tokens: tokens per block that they are counted in.
        new_tokens: tokens per block from now on.
    """
    session.execute(
        update(Reservation)
        .where(Reservation.engine_name == engine_name)
        .values(blocks=(Reservation.blocks * old_tokens + new_tokens - 1) // new_tokens)
        .execution_options(synchronize_session=False)
    )
