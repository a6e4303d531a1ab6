"""A run that begins before its job's claim: it is told whether the job is ours, and lets go if it is not."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from jobs.scheduling.head_starts import HeadStart
from jobs.scheduling.starts import Claim
from jobs.states import StopReason
from jobs.transitions import Lease
from worker.engine import loop as engine_loop
from worker.inference.leases import RunningJob, StopAsked


@dataclass(eq=False)
class EarlyRun:
    """A run that began before its job's claim. Its coroutine lives on the engine loop.

    Attributes:
        head_start: the job.
        claim: as it was foreseen, later as it is.
        job: what the run shares with the keeper of the leases, once the job is claimed.
        is_claimed: the job is ours.
        is_refused: it never will be.
        is_over: the engine certainly holds nothing for it.
        left: done once it was refused and has let go; True: its slot is certainly empty.
    """

    head_start: HeadStart
    claim: Claim
    job: RunningJob
    is_claimed: bool = False
    is_refused: bool = False
    is_over: bool = False
    left: "Future[bool]" = field(default_factory=Future)
    _decided: asyncio.Event = field(default_factory=asyncio.Event)
    _on_claim: Callable[[Claim], object] | None = None
    _waits_for: "Future[Any] | None" = None

    @property
    def lease(self) -> Lease:
        """The lease that its claim gives it."""
        return self.head_start.lease

    def confirm(self, claim: Claim) -> None:
        """Go on as the run of this claim, which is committed. The ticking thread calls it."""
        self.claim, self.is_claimed, self.job.claimed_at = claim, True, time.monotonic()

    def tell(self) -> None:
        """Tell the run that it was claimed. On the engine loop."""
        self._decided.set()
        if self._on_claim is not None:
            self._on_claim(self.claim)

    def listen(self, on_claim: Callable[[Claim], object]) -> None:
        """Call this with the claim once it has come. On the engine loop."""
        self._on_claim = on_claim
        if self._decided.is_set() and self.is_claimed:
            on_claim(self.claim)

    def refuse(self, waits_for: "Future[Any] | None" = None) -> None:
        """Note that the job is not ours, so that nothing begins in its slot; `stop` tells the run.

        Args:
            waits_for: done once its place may be left; False: it may not. None: as soon as it is over.
        """
        self.is_refused, self._waits_for = True, waits_for

    def stop(self) -> None:
        """Stop the run, which was refused. Any thread may call it."""
        self.job.inbox.put(StopAsked(StopReason.SHUTDOWN))
        engine_loop.call(self._decided.set)

    async def decided(self) -> bool:
        """Wait until it is certain whether the job is ours: the run before it ends in any case."""
        await self._decided.wait()
        return self.is_claimed

    async def may_leave(self) -> bool:
        """Wait until its place may be left. Returns False if something may be in its slot."""
        if self._waits_for is None:
            return self.is_over
        return self.is_over and await asyncio.wrap_future(self._waits_for) is not False
