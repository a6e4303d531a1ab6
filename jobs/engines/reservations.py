"""Slots and blocks reserved on an engine: held by a stream, then closed, or draining until it is done."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import (
    Integer,
    Subquery,
    TextClause,
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

# Parts of a statement that has rows `freed(lease_id, produced, cached)`: delete their reservations, and
# correct accounts from what was expected to what was generated.
CLOSED: Final = """
    closed AS (
        DELETE FROM reservations USING freed WHERE reservations.lease_id = freed.lease_id
        RETURNING reservations.engine_name, job_id, output_tokens, charged_prompt, reservations.state,
            freed.produced, freed.cached
    )
"""
_TO_SETTLE: Final = """
    SELECT jobs.tenant_id, jobs.model, closed.engine_name, closed.produced - closed.output_tokens
        + coalesce(jobs.prompt_tokens - closed.cached - closed.charged_prompt, 0) AS num_tokens
    FROM closed JOIN jobs ON jobs.id = closed.job_id
    WHERE closed.state = 'held'
"""
# Of jobs `ended(id, lease_id, tenant_id, model, engine_name)` that generated `given(id, produced)`: what
# `charge_late` charges, before this statement deletes their checkpoints.
_LATE: Final = """
    SELECT ended.tenant_id, ended.model, ended.engine_name,
        given.produced - coalesce(checkpoints.num_tokens, 0) AS num_tokens
    FROM ended JOIN given USING (id) LEFT JOIN checkpoints ON checkpoints.job_id = ended.id
    WHERE NOT EXISTS (SELECT FROM reservations WHERE reservations.lease_id = ended.lease_id)
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


SETTLE: Final = _settling(_TO_SETTLE)
SETTLE_WITH_LATE: Final = _settling(f"{_TO_SETTLE} UNION ALL {_LATE}")
_CHARGE_LATE: Final = text("""
    INSERT INTO account_shards AS shard (tenant_id, model, engine_name, served)
    SELECT jobs.tenant_id, jobs.model, jobs.engine_name,
        (:produced - coalesce(checkpoints.num_tokens, 0)) / tenants.weight
    FROM jobs JOIN tenants ON tenants.id = jobs.tenant_id
        LEFT JOIN checkpoints ON checkpoints.job_id = jobs.id
    WHERE jobs.id = :job_id AND jobs.lease_id = :lease_id
        AND NOT EXISTS (SELECT FROM reservations WHERE reservations.lease_id = :lease_id)
    ON CONFLICT (tenant_id, model, engine_name) DO UPDATE SET served = shard.served + excluded.served
""").bindparams(bindparam("job_id", type_=Uuid()), bindparam("lease_id", type_=Uuid()))


def _releasing(released: str) -> TextClause:
    """Return the statement that corrects an account by reservations that are held no more.

    Args:
        released: takes them out of the state `held`, and returns what they were; executed in any case.
    """
    # Nothing is known of the prompt unless this paid for it and the engine told what it had of it.
    settling = _settling("""
        SELECT jobs.tenant_id, jobs.model, released.engine_name,
            coalesce(:produced, jobs.completion_tokens) - released.output_tokens
            + coalesce(jobs.prompt_tokens - jobs.cached_tokens - released.charged_prompt, 0) AS num_tokens
        FROM released JOIN jobs ON jobs.id = released.job_id
        WHERE released.was_held
    """)
    return text(f"WITH released AS ({released}) {settling}").bindparams(
        bindparam("lease_id", type_=Uuid()), bindparam("produced", type_=Integer())
    )


_CLOSE: Final = _releasing("""
    DELETE FROM reservations WHERE lease_id = :lease_id
    RETURNING engine_name, job_id, output_tokens, charged_prompt, state = 'held' AS was_held
""")
_DRAIN: Final = _releasing("""
    UPDATE reservations SET state = 'draining', draining_since = clock_timestamp()
    WHERE lease_id = :lease_id AND state = 'held'
    RETURNING engine_name, job_id, output_tokens, charged_prompt, true AS was_held
""")


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


def charge_late(session: Session, job_id: UUID, lease_id: UUID, *, produced: int) -> None:
    """Charge what a job generated after its checkpoint, if its reservation was closed before its end.

    A job that was rescued meanwhile generates that again, and is charged for it then.
    """
    session.execute(_CHARGE_LATE, {"job_id": job_id, "lease_id": lease_id, "produced": produced})


def drain(session: Session, lease_id: UUID) -> None:
    """Let the reservation drain: it still counts, but no worker holds it.

    The engine may go on generating for a while.
    """
    session.execute(_DRAIN, {"lease_id": lease_id, "produced": None})


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
