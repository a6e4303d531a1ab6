"""Transactions of the event loop: a domain verb runs in one and is committed, or the caller may try again.

Each is bound: to the tenant of the request in which it runs, to tenants that its caller names, or to reading.
"""

import asyncio
from collections.abc import Callable, Collection
from contextvars import ContextVar
from typing import TypeVar
from uuid import UUID

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from jobs import database
from jobs.errors import UnavailableError
from jobs.settings import DatabaseSettings
from jobs.tenants import isolation
from jobs.tenants.isolation import TenantSession

T = TypeVar("T")

# Whose request this task answers; set once, before any code of a route runs.
request_tenant: ContextVar[UUID] = ContextVar("request_tenant")


class _LostBeforeCommitError(Exception):
    """The connection was lost while a transaction could not have been committed yet."""


class Transactions:
    """The API's connections to Postgres."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self._engine: AsyncEngine = database.make_async_engine(settings)
        # The server's own limits end every statement; this one is for a server that is frozen.
        self._max_seconds = (
            settings.pool_timeout_seconds
            + settings.connect_timeout_seconds
            + settings.statement_timeout_seconds
        )

    async def run(self, verb: Callable[[Session], T], *, tenant_ids: Collection[UUID] | None = None) -> T:
        """What `verb` returned, committed; its objects stay readable.

        When the connection turns out to be gone before `verb` has returned, nothing can have been
        committed, and `verb` is called once more on a new one.

        Args:
            verb: reaches no rows but those of the tenants.
            tenant_ids: at least one; None: the tenant of the request that this task answers.

        Raises:
            UnavailableError: no connection is free, or Postgres cannot be reached or does not answer.
        """
        bound_to = [request_tenant.get()] if tenant_ids is None else tenant_ids
        return await self._run(lambda session: isolation.enter(session, bound_to), verb)

    async def run_across(self, verb: Callable[[Session], T]) -> T:
        """What `verb` read, from the rows of all tenants; it can write nothing.

        Raises:
            UnavailableError: as `run`.
        """
        return await self._run(isolation.enter_across, verb)

    async def _run(self, enter: Callable[[Session], None], verb: Callable[[Session], T]) -> T:
        def bound(session: Session) -> T:
            enter(session)
            return verb(session)

        try:
            async with asyncio.timeout(self._max_seconds):
                try:
                    return await self._once(bound)
                except _LostBeforeCommitError:
                    return await self._once(bound)
        except PoolTimeoutError as error:
            raise UnavailableError("All database connections are busy; try again.") from error
        except (OperationalError, InterfaceError, TimeoutError, _LostBeforeCommitError) as error:
            raise UnavailableError("The database does not answer at the moment; try again.") from error

    async def _once(self, verb: Callable[[Session], T]) -> T:
        made = AsyncSession(self._engine, expire_on_commit=False, sync_session_class=TenantSession)
        async with made as session, session.begin():
            try:
                return await session.run_sync(verb)
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise _LostBeforeCommitError from error
                raise

    async def close(self) -> None:
        """The connections are closed."""
        await self._engine.dispose()
