"""Places of keys with quotas: few of one key's submissions are in the database at the same time.

They wait there for the key's lock, which the plan of a large tree holds for seconds. Without places they
would do so on all of this process's connections.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from jobs.errors import UnavailableError
from jobs.tenants.key_quotas import KeyQuota

# While one commits, the next one does what comes before the lock.
_MAX_PLACES: Final = 2


class KeyPlaces:
    """The places of this process's keys with quotas."""

    def __init__(self, *, max_seconds: float) -> None:
        """Args: max_seconds: that a submission waits for a place."""
        self._max_seconds = max_seconds
        self._places_of: WeakValueDictionary[UUID, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def place(self, quota: KeyQuota | None) -> AsyncIterator[None]:
        """Wait for a place of this key, and keep it as long as the context lasts; None: it needs none.

        Raises:
            UnavailableError: other submissions of the key take too long; try again.
        """
        if quota is None:
            yield
            return
        places = self._places_of.setdefault(quota.key_id, asyncio.Semaphore(_MAX_PLACES))
        try:
            async with asyncio.timeout(self._max_seconds):
                await places.acquire()
        except TimeoutError:
            message = "Other submissions of this API key are still being stored; try again."
            raise UnavailableError(message) from None
        try:
            yield
        finally:
            places.release()
