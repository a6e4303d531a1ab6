"""Looks API keys up in the database; concurrent look-ups share a query.

A key that was never seen thus waits no longer among hundreds of guesses than alone, wherever they come from.
"""

import asyncio
from functools import partial
from itertools import islice
from typing import Final

from api.runtime.database import Transactions
from jobs.tenants import keys
from jobs.tenants.keys import KeyRecord

# Two, so that one silently lost connection does not hold up all keys.
_MAX_QUERIES: Final = 2
_MAX_KEYS_OF_A_QUERY: Final = 1000


class KeyLookups:
    """Looks keys up, with at most two connections."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._waiting: dict[str, asyncio.Future[KeyRecord]] = {}
        self._queries: set[asyncio.Task[None]] = set()

    async def find(self, secret: str) -> KeyRecord:
        """Find a key.

        Raises:
            UnavailableError: the database does not answer.
        """
        if secret not in self._waiting:
            self._waiting[secret] = asyncio.get_running_loop().create_future()
        answer = self._waiting[secret]
        if len(self._queries) < _MAX_QUERIES:
            self._queries.add(asyncio.create_task(self._query_waiting()))
        return await asyncio.shield(answer)

    async def _query_waiting(self) -> None:
        try:
            await self._query_all()
        finally:  # at once: a callback would run later, and what is asked until then would wait for no query
            self._queries.discard(asyncio.current_task())

    async def _query_all(self) -> None:
        while self._waiting:
            asked = {
                secret: self._waiting.pop(secret)
                for secret in list(islice(self._waiting, _MAX_KEYS_OF_A_QUERY))
            }
            try:
                seen = await self._transactions.run_across(partial(keys.look_up, secrets=asked.keys()))
            except Exception as error:  # noqa: BLE001  # passed on to all callers
                for answer in asked.values():
                    answer.set_exception(error)
                    answer.exception()  # retrieved here, as the caller may have left
            else:
                for secret, answer in asked.items():
                    answer.set_result(seen[secret])
