"""Row changes for many followers: one query serves all of them, twice a second and when a row ends."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Generic, TypeVar
from uuid import UUID

from sqlalchemy.orm import Session

from api.runtime.database import Transactions
from jobs import telemetry

Status = TypeVar("Status", bound=Hashable)
Read = Callable[[Session, Sequence[UUID]], Mapping[UUID, Status]]

INTERVAL: Final = 0.5


class RowChanges(Generic[Status]):
    """Publishes a row's visible state to each follower whenever it changes; one query serves all."""

    def __init__(
        self,
        transactions: Transactions,
        read: "Read[Status]",
        *,
        interval: float = INTERVAL,
        pause: float = 0.0,
    ) -> None:
        """Prepare the polls.

        Args:
            transactions: of this process.
            read: returns the visible state of existing rows by id.
            interval: seconds between two looks.
            pause: the same at least, however many followers come and rows end.
        """
        self._pause = pause
        self._transactions = transactions
        self._read = read
        self._interval = interval
        self._listeners: dict[UUID, set[asyncio.Queue[Status | None]]] = defaultdict(set)
        self._seen: dict[UUID, Status] = {}
        self._wanted = asyncio.Event()
        self._released = False

    async def changes(self, row_id: UUID) -> AsyncGenerator[Status, None]:
        """Yield the row's visible state first and on each change, until it is deleted."""
        mine: asyncio.Queue[Status | None] = asyncio.Queue()
        self._listeners[row_id].add(mine)
        if row_id in self._seen:
            mine.put_nowait(self._seen[row_id])
        else:
            self._wanted.set()
        try:
            while not self._released and (seen := await mine.get()) is not None:
                yield seen
        finally:
            self._listeners[row_id].discard(mine)
            if not self._listeners[row_id]:
                del self._listeners[row_id]
                self._seen.pop(row_id, None)

    def poll_now(self, ended: Collection[UUID]) -> None:
        """Poll at once if any of these rows, which have ended, is followed."""
        if not self._listeners.keys().isdisjoint(ended):
            self._wanted.set()

    def release(self) -> None:
        """End all followers' streams; used when the server stops."""
        self._released = True
        for row_id in list(self._listeners):
            self._publish(row_id, None)

    async def run(self) -> None:
        """Poll the followed rows until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval if self._listeners else None):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._poll()
            except Exception as error:  # noqa: BLE001  # the loop must outlive any one failure
                telemetry.logger().warning(
                    telemetry.LOOP_FAILED, loop="row-changes", error=type(error).__name__
                )
                await asyncio.sleep(self._interval)
            await asyncio.sleep(self._pause)

    async def _poll(self) -> None:
        asked = list(self._listeners)
        if not asked:
            return
        # Across tenants: the route checked earlier that the follower owns the row.
        found = await self._transactions.run_across(lambda session: self._read(session, asked))
        for row_id in asked:
            seen = found.get(row_id)
            if row_id in self._listeners and (seen is None or seen != self._seen.get(row_id)):
                if seen is not None:
                    self._seen[row_id] = seen
                self._publish(row_id, seen)

    def _publish(self, row_id: UUID, seen: Status | None) -> None:
        for listener in self._listeners.get(row_id, ()):
            listener.put_nowait(seen)
