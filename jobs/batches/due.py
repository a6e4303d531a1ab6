"""The batches that have something to do."""

from typing import NamedTuple
from uuid import UUID

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from jobs.batches.expansion import MAX_FAILURES
from jobs.models import Job
from jobs.models.batch import Batch
from jobs.states.batch import BatchState


class DueBatch(NamedTuple):
    """A batch that may have something to do now.

    Attributes:
        id: of the batch.
        state: its state.
        only_expands: none of its lines has ended since lines were collected last.
        needs_room: its next lines are to become jobs, for which quotas need room.
        quota_owners: the tenant, and the key that created it, if one did: whose quotas these are.
    """

    id: UUID
    state: BatchState
    only_expands: bool
    needs_room: bool
    quota_owners: frozenset[UUID]


def find_due(session: Session) -> list[DueBatch]:
    """List batches that may have something to do now, oldest first."""
    ended = select(Job.id).where(Job.batch_id == Batch.id, ~Job.is_reported, Job.finalized_at.is_not(None))
    may_collect = or_(
        Batch.state != BatchState.IN_PROGRESS,
        Batch.num_completed + Batch.num_failed + Batch.num_stopped == Batch.num_lines,
        ended.exists(),
    )
    active = [BatchState.IN_PROGRESS, BatchState.FINALIZING, BatchState.CANCELLING]
    needs_room = and_(
        Batch.state == BatchState.IN_PROGRESS,
        Batch.expires_at > func.clock_timestamp(),
        Batch.num_failures < MAX_FAILURES,
    )
    rows = session.execute(
        select(Batch.id, Batch.state, ~may_collect, needs_room, Batch.tenant_id, Batch.api_key_id)
        .where(Batch.state.in_(active), or_(~Batch.is_expanded, may_collect))
        .where(or_(Batch.run_after.is_(None), Batch.run_after <= func.clock_timestamp()))
        .order_by(Batch.id)
    )
    found = []
    for batch_id, state, only_expands, room, tenant_id, key_id in rows:
        owners = frozenset({tenant_id} if key_id is None else {tenant_id, key_id})
        found.append(DueBatch(batch_id, BatchState(state), only_expands, room, owners))
    return found
