"""Does once at start what the first submission would wait for: connections, and what is made on first use."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from api.runtime.database import Transactions
from api.runtime.quotas import QuotaCache
from api.runtime.rate_limits import RateLimit
from api.runtime.services import Services
from jobs import job_rows
from jobs.database import statements
from jobs.engines import registry
from jobs.errors import AuthenticationError, LongbatchError
from jobs.ids import uuid7
from jobs.prompts import store
from jobs.tenants.quotas import QuotaUsage, TenantLimits
from jobs.webhooks import destinations

_NOBODY: Final = UUID(int=0)
# Opens nothing.
_NO_KEY: Final = f"Bearer lb_{'0' * 16}_{'0' * 43}"
_MANY: Final = 1_000_000
_CONNECTIONS: Final = 4
_MAX_SECONDS: Final = 1.0
_NO_WAITING: Final = text("SET LOCAL lock_timeout = '50ms'")


async def warm_up(services: Services) -> None:
    """Look up a key that does not exist, and store no jobs of tenants that do not exist.

    On four connections: beside a submission the API reads keys and what it remembers anew, and notes uses.

    Before any request, which would wait for a connection. Servers that do not answer are left to the first.
    """
    with suppress(LongbatchError, DBAPIError, TimeoutError):
        async with asyncio.timeout(_MAX_SECONDS):
            await services.rates.hit(RateLimit(_NOBODY, _MANY))
            with suppress(AuthenticationError):
                await services.api_keys.verify(_NO_KEY)
            await services.engines.get()
            await services.tensors.get()
            nobodies = (uuid7() for _ in range(_CONNECTIONS))
            await asyncio.gather(*(_rehearse(services.transactions, each) for each in nobodies))


async def _rehearse(transactions: Transactions, tenant_id: UUID) -> None:
    await transactions.run(partial(store_nothing, tenant_id=tenant_id), tenant_ids=[tenant_id])


def store_nothing(session: Session, tenant_id: UUID) -> None:
    """Execute the statements of a tenant's first submission, so that the server process has its caches.

    Args:
        session: of a transaction bound to that tenant.
        tenant_id: of a tenant that does not exist.
    """
    session.execute(_NO_WAITING)
    registry.read_registered(session)
    statements.fetch(session, *store.insertion({}, tenant_id))
    QuotaCache().admission(tenant_id, TenantLimits(_MANY, _MANY, _MANY))(session, QuotaUsage(), [])
    job_rows.rehearse(session)
    destinations.rehearse(session, tenant_id)
