"""The check of answers: a tenant has one check at a time, so none takes the processes from the others."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from jobs.prompts.confined.processes import NUM_PROCESSES, SHARED, TooCostlyError
from jobs.prompts.guides import Guide

TOO_COSTLY: Final = "checking it takes too long"


class FormChecker:
    """Checks answers in confined processes. Its coroutines run on one event loop.

    Attributes:
        quotes: what it says of an answer may quote it.
    """

    def __init__(self, *, quotes: bool = True) -> None:
        self.quotes: Final = quotes
        self._threads = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="form")
        self._turns: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()

    async def fault_of(self, text: str, guide: Guide, *, tenant_id: UUID) -> str | None:
        """Return what keeps an answer from having its form; None: nothing does.

        Raises:
            CheckerLostError: no process can be started; try again.
        """
        turn = self._turns.setdefault(tenant_id, asyncio.Lock())
        async with turn:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self.check, text, guide)

    def check(self, text: str, guide: Guide) -> str | None:
        """Find a fault like `fault_of`, in the caller's thread."""
        try:
            fault: str | None = SHARED.ask({"guide": guide.written(), "text": text, "quotes": self.quotes})
        except TooCostlyError:
            return TOO_COSTLY
        return fault

    def close(self) -> None:
        """Wait for its present checks."""
        self._threads.shutdown()
