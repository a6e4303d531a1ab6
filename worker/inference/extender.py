"""Extending reservations: what is asked for during one transaction shares the next one."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Final

from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from jobs import telemetry
from jobs.database import transaction
from jobs.scheduling import growth
from jobs.scheduling.growth import Extended, Extension, WaitForBlocks
from jobs.scheduling.sizing import ClaimPolicy

# The database is away or busy, whatever was asked for.
_AWAY: Final = (OperationalError, InterfaceError, PoolTimeoutError)


class Extender:
    """Extends the reservations of one engine, which each transaction locks; hundreds may ask at once."""

    def __init__(
        self,
        engine_name: str,
        sessions: sessionmaker[Session],
        *,
        policy: Callable[[], ClaimPolicy],
        threads: Executor,
    ) -> None:
        """Set up without a transaction.

        Args:
            engine_name: of the engine.
            sessions: of the database.
            policy: returns the present claim policy.
            threads: where the transactions happen.
        """
        self._engine_name = engine_name
        self._sessions = sessions
        self._policy = policy
        self._threads = threads
        self._lock = threading.Lock()
        self._asked: list[tuple[Extension, Future[Extended]]] = []
        self._is_extending = False

    async def extend(self, asked: Extension) -> Extended:
        """Extend the reservation of one job; it waits if the database refused, and may ask again.

        Raises:
            Exception: anything but the database failed for this job; asking again would not help.
        """
        extended = Future[Extended]()
        extended.set_running_or_notify_cancel()  # a run that is cancelled must not fail the others
        with self._lock:
            self._asked.append((asked, extended))
            is_first, self._is_extending = not self._is_extending, True
        if is_first:
            self._threads.submit(self._extend_all)
        return await asyncio.wrap_future(extended)

    def _extend_all(self) -> None:
        """Extend until no job asks."""
        while True:
            with self._lock:
                asked, self._asked = self._asked, []
                if not asked:
                    self._is_extending = False
                    return
            found = self._extend_together([each for each, _ in asked])
            for (_, extended), how in zip(asked, found, strict=True):
                if isinstance(how, Exception):
                    extended.set_exception(how)
                else:
                    extended.set_result(how)

    def _extend_together(self, asked: Sequence[Extension]) -> Sequence[Extended | Exception]:
        """Extend all in one transaction; if that fails because of one, each in a transaction of its own."""
        try:
            with transaction(self._sessions) as session:
                return growth.extend(session, self._engine_name, asked, policy=self._policy())
        except Exception as error:  # noqa: BLE001  # none may wait for ever
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="extend", error=type(error).__name__)
            if len(asked) > 1 and not isinstance(error, _AWAY):
                return [how for each in asked for how in self._extend_together([each])]
            # The lease bounds the retries.
            return [WaitForBlocks() if isinstance(error, SQLAlchemyError) else error for _ in asked]
