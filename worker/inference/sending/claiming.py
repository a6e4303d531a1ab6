"""Runs that begin while their claims commit: they make their requests, and send them once they may."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from jobs.scheduling.starts import Claim
from jobs.transitions import Lease
from worker.engine import loop as engine_loop
from worker.inference.leases import RunningJob

# By then its request is under way, which what is called on a claim would hold up.
_AFTER_SENDING_SECONDS: Final = 0.001


@dataclass(eq=False)
class Claiming:
    """A claim that is about to be committed. Its run waits for that before anything leaves the process.

    Attributes:
        claim: as it is to be.
        job: what the run shares with the keeper of the leases, once the claim is committed.
    """

    claim: Claim
    job: RunningJob
    _decided: asyncio.Event = field(default_factory=asyncio.Event)
    _is_claimed: bool = False
    _on_claim: Callable[[Claim], object] | None = None

    @property
    def lease(self) -> Lease:
        """The lease that the claim gives."""
        return self.claim.lease

    async def is_claimed(self) -> bool:
        """Wait until the claim is committed, or will not be heeded; return which."""
        await self._decided.wait()
        return self._is_claimed

    def listen(self, on_claim: Callable[[Claim], object]) -> None:
        """Call this with the claim soon after it is committed, if it is. On the engine loop."""
        self._on_claim = on_claim
        if self._decided.is_set():
            self._call()

    def tell(self, *, is_claimed: bool) -> None:
        """Tell the run. On the engine loop."""
        self._is_claimed = is_claimed
        self._decided.set()
        self._call()

    def _call(self) -> None:
        if self._is_claimed and self._on_claim is not None:
            asyncio.get_running_loop().call_later(_AFTER_SENDING_SECONDS, self._on_claim, self.claim)


def decide(claims: Iterable[Claiming], *, is_claimed: bool) -> None:
    """Tell the runs of these claims whether they are committed. Any thread may call it."""
    told = list(claims)

    def tell() -> None:
        for each in told:
            each.tell(is_claimed=is_claimed)

    engine_loop.call(tell)
