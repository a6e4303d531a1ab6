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

        Raises:
            UnavailableError: no connection is free, or Postgres cannot be reached or does not answer.
        """
        try:
            async with (
                asyncio.timeout(self._max_seconds),
                AsyncSession(self._engine, expire_on_commit=False) as session,
                session.begin(),
            ):
                return await session.run_sync(verb)
        except PoolTimeoutError as error:
            raise UnavailableError("All database connections are busy; try again.") from error
        except (OperationalError, InterfaceError, TimeoutError) as error:
            raise UnavailableError("The database does not answer at the moment; try again.") from error
        except DBAPIError as error:
            if error.connection_invalidated:
                raise UnavailableError("The database connection was lost; try again.") from error
            raise

    async def close(self) -> None:
        """The connections are closed."""
        await self._engine.dispose()
