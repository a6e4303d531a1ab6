"""Does once at start what the first submission would wait for: connections, and what is made on first use."""

import asyncio
from contextlib import suppress
from typing import Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from api.runtime.services import Services
from jobs import job_rows
from jobs.engines import registry
from jobs.errors import AuthenticationError, LongbatchError
from jobs.prompts import store
from jobs.tenants import quotas

_NOBODY: Final = UUID(int=0)
# Opens nothing.
_NO_KEY: Final = f"Bearer lb_{'0' * 16}_{'0' * 43}"
_MAX_SECONDS: Final = 1.0
_NO_WAITING: Final = text("SET LOCAL lock_timeout = '50ms'")


async def warm_up(services: Services) -> None:
    """Look up a key that does not exist, and store no jobs of a tenant that does not exist.

    Before any request, which would wait for a connection. Servers that do not answer are left to the first.
    """
    with suppress(LongbatchError, DBAPIError, TimeoutError):
        async with asyncio.timeout(_MAX_SECONDS):
            await services.rates.connect()
            with suppress(AuthenticationError):
                await services.api_keys.verify(_NO_KEY)
            await services.takes.get()
            await services.tensors.get()
            await services.transactions.run(store_nothing, tenant_ids=[_NOBODY])


def store_nothing(session: Session) -> None:
    """Execute the statements of a submission, which are thus compiled, prepared and planned."""
    session.execute(_NO_WAITING)
    clock_and_capacities = registry.ask_clock_and_capacities(session)
    store.insert_new(session, {}, _NOBODY)
    clock_and_capacities()
    quotas.own_limits(session, [_NOBODY])
    quotas.current_usage(session, _NOBODY)
    job_rows.rehearse(session)
