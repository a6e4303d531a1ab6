"""Claims of their own, apart from the ticks in which workers make them."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.statements import Statement
from jobs.engines import reservations
from jobs.scheduling import engine_load
from jobs.scheduling.claims import ClaimResult, FreedSlot, start_jobs
from jobs.scheduling.previews import Preview
from jobs.scheduling.sizing import ClaimPolicy
from jobs.scheduling.starts import Claim


def claim(session: Session, engine_name: str, policy: ClaimPolicy) -> Claim | None:
    """Start the next job for this engine and reserve its blocks.

    Returns:
        None if no job may start now.
    """
    return next(iter(claim_all(session, engine_name, policy, limit=1).claims), None)


def claim_all(
    session: Session,
    engine_name: str,
    policy: ClaimPolicy,
    *,
    ended: Sequence[FreedSlot] = (),
    preview: Preview | None = None,
    limit: int | None = None,
) -> ClaimResult:
    """Close the reservations of `ended`, and start what fits then; see `start_jobs`."""
    locked = engine_load.lock(session, engine_name)
    _close(session, ended)
    return start_jobs(session, locked, policy, preview=preview, limit=limit, ended=ended)


def _close(session: Session, ended: Sequence[FreedSlot]) -> None:
    given = {
        "lease_ids": [each.lease_id for each in ended],
        "produced": [each.generated_tokens for each in ended],
        "cached": [each.cached_tokens for each in ended],
    }
    if ended:
        statements.fetch(session, _CLOSE, given)


_CLOSE: Final = Statement(f"""
    WITH freed AS (
        SELECT * FROM unnest(%(lease_ids)s::uuid[], %(produced)s::integer[], %(cached)s::integer[])
            AS freed(lease_id, produced, cached)
    ), {reservations.CLOSED} {reservations.SETTLE}
""")  # noqa: S608  # built from constants
