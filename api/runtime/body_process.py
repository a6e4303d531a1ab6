"""The process that works on long bodies, so that they do not hold the interpreter lock of all requests."""

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Final, Self, TypeVar, TypeVarTuple, Unpack

from jobs.errors import UnavailableError

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

# Lower priority than the process that answers requests.
_NICENESS: Final = 5
_PR_SET_PDEATHSIG: Final = 1  # of linux/prctl.h
_DIED: Final = "The process that parses long requests died; try again."


class BodyProcess:
    """One process that runs functions, and is replaced when it dies.

    `forked` starts it as a copy of this one, which shares its memory. That is safe only before there are
    threads: a replacement is a new interpreter, and imports what it needs.
    """

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    @classmethod
    def forked(cls) -> Self:
        """Fork the process. Call it before this one has threads, connections or an event loop."""
        made = cls()
        with contextlib.suppress(BrokenProcessPool, OSError):  # the first long body starts one
            pool = _new_pool("fork")
            pool.submit(os.getpid).result()
            made._pool = pool
        return made

    async def run(self, work: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Run `work` in the process.

        Args:
            work: a module-level function; it, its arguments, result and errors are pickled.
            args: of `work`.

        Raises:
            UnavailableError: the process died before `work` returned; try again.
        """
        try:
            pool = self._pool = self._pool or _new_pool("spawn")
            # The event loop's thread starts it: the process ends with the thread that did.
            future = pool.submit(work, *args)
        except (BrokenProcessPool, OSError) as error:  # it died while idle, or none can be started
            self.close()
            raise UnavailableError(_DIED) from error
        try:
            return await asyncio.wrap_future(future)
        except BrokenProcessPool as error:
            if self._pool is pool:
                self.close()
            raise UnavailableError(_DIED) from error

    def close(self) -> None:
        """End the process, with the work that it does."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        for process in list((pool._processes or {}).values()):  # noqa: SLF001  # `kill_workers` in Python 3.14
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)


def _new_pool(start_method: str) -> ProcessPoolExecutor:
    context = multiprocessing.get_context(start_method)
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(os.getpid(),))


def _begin(parent: int) -> None:
    """Set up this process: it ends with its parent and by nothing else, and leaves the CPU to it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(1)
    # A signal to the whole group asks the parent to stop, which still answers long bodies then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
