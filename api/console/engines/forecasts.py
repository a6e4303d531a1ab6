"""Forecasts for pictures of engines: seconds old, so that watching one costs the database little."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

from api.console.engines.activity import EngineActivity
from jobs.forecast.queue_position import QueueForecast

# A forecast takes some eight statements: one in so many seconds leaves a watched page below one a second.
SECONDS: Final = 20.0
# So many may follow each other where something happens after a quiet time.
_BURST: Final = 2
_RETRY_SECONDS: Final = 2.0


@dataclass(slots=True)
class _Kept:
    """The newest forecast of a model.

    Attributes:
        queue: None: none was made yet, or it could not be.
        making: a newer one; None: it is not being made.
        made_at: by the monotonic clock.
        free_at: since when no forecast would have been made too often.
    """

    queue: QueueForecast | None = None
    making: asyncio.Task[None] | None = None
    made_at: float = float("-inf")
    free_at: float = float("-inf")


class PictureForecasts:
    """The newest forecast of each model whose engines are looked at, shared by all pages of this process."""

    def __init__(
        self,
        forecast: Callable[[str], Awaitable[QueueForecast | None]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare.

        Args:
            forecast: the queue of a model; None: it cannot be found now.
            clock: in seconds.
        """
        self._forecast = forecast
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    async def of(self, engine: EngineActivity) -> QueueForecast | None:
        """Return a forecast for the engine's picture.

        It is made anew after `SECONDS`; earlier if it does not know what the engine does, but on average no
        more often.

        Returns:
            None: it cannot be found now.
        """
        kept = self._kept.setdefault(engine.model, _Kept())
        now = self._clock()
        is_old = kept.queue is None or now - kept.made_at >= SECONDS or _is_unknown(engine, kept.queue)
        if is_old and kept.making is None and kept.free_at <= now:
            kept.free_at = max(kept.free_at, now - (_BURST - 1) * SECONDS) + SECONDS
            kept.made_at = now
            kept.making = asyncio.create_task(self._make(engine.model, kept))
        if kept.making is not None:
            await asyncio.shield(kept.making)  # whoever leaves takes it from nobody
        return kept.queue

    async def _make(self, model: str, kept: _Kept) -> None:
        try:
            kept.queue = await self._forecast(model)
        finally:
            kept.making = None
            if kept.queue is None:
                kept.free_at = self._clock() + _RETRY_SECONDS


def _is_unknown(engine: EngineActivity, queue: QueueForecast) -> bool:
    """Return True if the engine has a job, or takes jobs, of which the forecast knows nothing."""
    names: Collection[str] = [each.name for each in queue.snapshot.registered if each.is_up]
    takes_jobs = engine.is_up and engine.halt is None
    return takes_jobs and (
        engine.name not in names or any(bar.job_id not in queue.forecast.ends for bar in engine.held)
    )
