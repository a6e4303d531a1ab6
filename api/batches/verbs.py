"""What callers and people do with a batch: cancel it, retry its failed lines."""

from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from api.runtime.services import Services
from api.runtime.traces import traced
from jobs import batches
from jobs.doorbell import SERVICE
from jobs.models.batch import Batch
from jobs.tenants.idempotency import IdempotencyGuard, RequestKind, run_idempotently

BATCH: Final[RequestKind[Batch]] = RequestKind(
    "batch", record=lambda batch: batch.id, find=lambda session, recorded: session.get(Batch, recorded)
)


async def cancel(services: Services, batch_id: UUID, *, tenant_id: UUID) -> Batch:
    """Start to cancel the tenant's batch; raises as `batches.cancel` does."""
    batch = await services.transact(batches.cancel, batch_id=batch_id, tenant_id=tenant_id)
    services.doorbell.ring(SERVICE)
    return batch


async def retry(
    services: Services, batch_id: UUID, *, tenant_id: UUID, guard: IdempotencyGuard | None
) -> Batch:
    """Create a batch of the lines that did not complete, once for each guard.

    Raises as `batches.retry` does.
    """
    make = traced_batch(partial(batches.retry, batch_id=batch_id, tenant_id=tenant_id))

    def run(session: Session) -> Batch:
        if guard is None:
            return make(session)
        return run_idempotently(session, guard, make, tenant_id=tenant_id, kind=BATCH)[0]

    batch = await services.transact(run)
    services.doorbell.ring(SERVICE)
    return batch


def traced_batch(create: Callable[[Session], Batch]) -> Callable[[Session], Batch]:
    """Let the batch that `create` makes belong to the trace of the present request, if there is one."""
    make = traced(lambda session: [create(session)])
    return lambda session: make(session)[0]
