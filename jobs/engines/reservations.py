"""Slots and blocks reserved on an engine: held by a stream, then closed, or draining until it is done."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import (
    Integer,
    Subquery,
    Uuid,
    bindparam,
    case,
    delete,
    func,
    select,
    text,
    update,
)
from sqlalchemy.orm import Session

from jobs.models import Job, Reservation

# Parts of a statement that has rows `freed(lease_id, produced, cached, is_done)`: delete the reservations of
# those that are done, let the others drain, and return what they were.
RELEASED: Final = """
    closed AS (
        DELETE FROM reservations USING freed
        WHERE reservations.lease_id = freed.lease_id AND freed.is_done
        RETURNING reservations.engine_name, job_id, output_tokens, charged_prompt, freed.produced,
            freed.cached, reservations.state = 'held' AS was_held
    ), drained AS (
        UPDATE reservations SET state = 'draining', draining_since = clock_timestamp() FROM freed
        WHERE reservations.lease_id = freed.lease_id AND NOT freed.is_done AND reservations.state = 'held'
        RETURNING reservations.engine_name, job_id, output_tokens, charged_prompt, freed.produced,
            freed.cached, true AS was_held
    ), released AS (
        SELECT * FROM closed UNION ALL SELECT * FROM drained
    )
"""
_TO_SETTLE: Final = """
    SELECT jobs.tenant_id, jobs.model, released.engine_name, released.produced - released.output_tokens
        + coalesce(jobs.prompt_tokens - released.cached - released.charged_prompt, 0) AS num_tokens
    FROM released JOIN jobs ON jobs.id = released.job_id
    WHERE jobs.id = ANY(ARRAY(SELECT job_id FROM released)) AND released.was_held
"""


def _settling(rows: str) -> str:
    """Return the statement that adds tokens to accounts, each of them once."""
    return f"""
    INSERT INTO account_shards AS shard (tenant_id, model, engine_name, served)
    SELECT tenant_id, model, engine_name, sum(num_tokens / tenants.weight)
    FROM ({rows}) AS charged JOIN tenants ON tenants.id = tenant_id
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (tenant_id, model, engine_name) DO UPDATE SET served = shard.served + excluded.served
"""  # noqa: S608  # built from constants


# With rows `late(tenant_id, model, engine_name, num_tokens)` too, of jobs whose reservations went before.
SETTLE: Final = _settling(
    f"{_TO_SETTLE} UNION ALL SELECT tenant_id, model, engine_name, num_tokens FROM late"  # noqa: S608
)


# Nothing is known of the prompt unless this paid for it and the engine told what it had of it.
_CLOSE: Final = text(f"""
    WITH released AS (
        DELETE FROM reservations WHERE lease_id = :lease_id
        RETURNING engine_name, job_id, output_tokens, charged_prompt, state = 'held' AS was_held
    ) {
    _settling('''
        SELECT jobs.tenant_id, jobs.model, released.engine_name,
            coalesce(:produced, jobs.completion_tokens) - released.output_tokens
            + coalesce(jobs.prompt_tokens - jobs.cached_tokens - released.charged_prompt, 0) AS num_tokens
        FROM released JOIN jobs ON jobs.id = released.job_id
        WHERE released.was_held
    ''')
}
""").bindparams(bindparam("lease_id", type_=Uuid()), bindparam("produced", type_=Integer()))  # noqa: S608


def booked() -> Subquery:
    """Select what is reserved on each engine: `engine_name`, `slots` and `blocks`, shared ones once."""
    owned = (Job.id == Reservation.job_id) & (Job.lease_id == Reservation.lease_id)
    shared = case((Job.family.is_(None), 0), else_=Reservation.shared_blocks)
    families = (
        select(
            Reservation.engine_name,
            func.count().label("slots"),
            (func.sum(Reservation.blocks - shared) + func.max(shared)).label("blocks"),
        )
        .outerjoin(Job, owned)
        .group_by(Reservation.engine_name, Job.tenant_id, Job.family)
        .subquery()
    )
    sums = [func.sum(families.c[name]).label(name) for name in ("slots", "blocks")]
    return select(families.c.engine_name, *sums).group_by(families.c.engine_name).subquery()


def close(session: Session, lease_id: UUID, *, produced: int | None = None) -> None:
    """Delete the reservation, as its request ended or never reached the engine.

    Args:
        session: the caller's transaction.
        lease_id: whose reservation; nothing happens if it is already deleted.
        produced: tokens that the job has generated in all; None: what its row says.
    """
    session.execute(_CLOSE, {"lease_id": lease_id, "produced": produced})


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
        .values(
            blocks=(Reservation.blocks * old_tokens + new_tokens - 1) // new_tokens,
            shared_blocks=Reservation.shared_blocks * old_tokens // new_tokens,
        )
        .execution_options(synchronize_session=False)
    )
