"""Transactions of the event loop: a domain verb runs in one and is committed, or the caller may try again."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from jobs import database
from jobs.errors import UnavailableError
from jobs.settings import DatabaseSettings

T = TypeVar("T")


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

    async def run(self, verb: Callable[[Session], T]) -> T:
        """What `verb` returned, committed; its objects stay readable.

        When the connection turns out to be gone before `verb` has returned, nothing can have been
        committed, and `verb` is called once more on a new one.

        Raises:
            UnavailableError: no connection is free, or Postgres cannot be reached or does not answer.
        """
        try:
            async with asyncio.timeout(self._max_seconds):
                try:
                    return await self._once(verb)
                except _LostBeforeCommitError:
                    return await self._once(verb)
        except PoolTimeoutError as error:
            raise UnavailableError("All database connections are busy; try again.") from error
        except (OperationalError, InterfaceError, TimeoutError, _LostBeforeCommitError) as error:
            raise UnavailableError("The database does not answer at the moment; try again.") from error

    async def _once(self, verb: Callable[[Session], T]) -> T:
        async with AsyncSession(self._engine, expire_on_commit=False) as session, session.begin():
            try:
                return await session.run_sync(verb)
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise _LostBeforeCommitError from error
                raise

    async def close(self) -> None:
        """The connections are closed."""
        await self._engine.dispose()
