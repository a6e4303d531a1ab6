"""Transactions of the event loop: each runs one domain verb and commits, or the caller may try again.

Each is bound to the tenant of its request, to tenants that its caller names, or to reading only, unless an
operator asks.
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

from jobs import audit, database
from jobs.audit import Actor
from jobs.errors import StorageFullError, UnavailableError
from jobs.sealing.content import PLAIN, ContentSealer
from jobs.settings import DatabaseSettings
from jobs.tenants import isolation
from jobs.tenants.isolation import TenantSession

T = TypeVar("T")

# The tenant whose request this task answers; set once, before any code of a route runs.
request_tenant: ContextVar[UUID] = ContextVar("request_tenant")
# Who sends that request, for the audit log; None: the server works for itself.
request_actor: ContextVar[Actor | None] = ContextVar("request_actor", default=None)


class _LostBeforeCommitError(Exception):
    """The connection was lost before the transaction could have been committed."""


class Transactions:
    """The API's connections to Postgres.

    Attributes:
        on_ended: called after a commit with the jobs that it ended, if any.
    """

    def __init__(self, settings: DatabaseSettings, sealer: ContentSealer = PLAIN) -> None:
        self.on_ended: Callable[[Collection[UUID]], None] = lambda _: None
        self._pool: AsyncEngine = database.make_async_engine(settings, sealer=sealer)
        # The server's own limits end every statement; this one is for a frozen server.
        self._max_seconds = (
            settings.pool_timeout_seconds
            + settings.connect_timeout_seconds
            + settings.statement_timeout_seconds
        )

    async def run(self, verb: Callable[[Session], T], *, tenant_ids: Collection[UUID] | None = None) -> T:
        """Run `verb` in a transaction and commit; its result's objects stay readable.

        If the connection turns out to be lost before `verb` returns, nothing can be committed yet, and `verb`
        runs once more on a new connection.

        Args:
            verb: can reach only rows of the tenants.
            tenant_ids: at least one; None: the tenant of the request that this task answers.

        Raises:
            StorageFullError: Postgres has no room on its disk; try again.
            UnavailableError: no connection is free, or Postgres is unreachable or does not answer; try again.
        """
        bound_to = [request_tenant.get()] if tenant_ids is None else tenant_ids
        return await self._run(lambda session: isolation.enter(session, bound_to), verb)

    async def run_across(self, verb: Callable[[Session], T]) -> T:
        """Run `verb` read-only on the rows of all tenants, and return its result.

        Raises:
            UnavailableError: as `run`.
        """
        return await self._run(isolation.enter_across, verb)

    async def run_as_operator(self, verb: Callable[[Session], T]) -> T:
        """Run `verb` on the rows of all tenants and commit.

        Only for callers with the scope `operator`, and for what a tenant may change of its own row there.

        Raises:
            UnavailableError: as `run`.
        """
        return await self._run(isolation.enter_as_operator, verb)

    async def _run(self, enter: Callable[[Session], None], verb: Callable[[Session], T]) -> T:
        def bound(session: Session) -> T:
            enter(session)
            audit.act_as(session, request_actor.get())
            return verb(session)

        try:
            async with asyncio.timeout(self._max_seconds):
                try:
                    return await self._once(bound)
                except _LostBeforeCommitError:
                    return await self._once(bound)
        except PoolTimeoutError as error:
            raise UnavailableError("All database connections are busy; try again.") from error
        except (DBAPIError, TimeoutError, _LostBeforeCommitError) as error:
            if database.is_full(error):
                raise StorageFullError from error
            if isinstance(error, DBAPIError) and not is_lost(error):
                raise
            raise UnavailableError("The database does not answer at the moment; try again.") from error

    async def _once(self, verb: Callable[[Session], T]) -> T:
        made = AsyncSession(self._pool, expire_on_commit=False, sync_session_class=TenantSession)
        async with made as session:
            async with session.begin():
                try:
                    result = await session.run_sync(verb)
                except DBAPIError as error:
                    if error.connection_invalidated:
                        raise _LostBeforeCommitError from error
                    raise
            if ended := database.take_ended(session.sync_session):
                self.on_ended(ended)
            return result

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.dispose()


def is_lost(error: DBAPIError) -> bool:
    """Return True if the database does not answer, or has ended the session, with whatever kind of error."""
    return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
