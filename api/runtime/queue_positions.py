"""Queue positions of waiting jobs: one snapshot of a model's queue per second serves all callers."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from api.runtime.cached_value import CachedValue
from api.runtime.database import is_lost
from jobs import database, telemetry
from jobs.errors import UnavailableError
from jobs.forecast import backlog, queue_position
from jobs.forecast.backlog import QueueDepth
from jobs.forecast.duration import Estimate, seconds_until_done
from jobs.forecast.engine_speed import A6000
from jobs.forecast.queue_position import QueueForecast
from jobs.forecast.snapshot import take_snapshot
from jobs.models import Job
from jobs.scheduling.output_history import History
from jobs.scheduling.sizing import ClaimPolicy
from jobs.sealing.content import ContentSealer
from jobs.settings import Settings
from jobs.states import JobState
from jobs.tenants import isolation
from jobs.views import QueuePosition

T = TypeVar("T")
# How long callers share a snapshot; a position seldom changes within it.
_FORECAST_SECONDS: Final = 1.0
# Far back in the queue a position changes slowly, and counting is more expensive.
_DEPTH_SECONDS: Final = 10.0
_HISTORY_KEPT: Final = timedelta(seconds=5)
# A caller gets the job without its position if finding it takes longer.
_PATIENCE_SECONDS: Final = 2.0
_WAITING: Final = frozenset({JobState.BLOCKED, JobState.PREPARING, JobState.QUEUED})
# One for the snapshot of the head, one for the count of the jobs after it.
_CONNECTIONS: Final = 2


class QueuePositions:
    """Finds positions on threads and connections of its own, so neither event loop nor requests wait."""

    def __init__(self, settings: Settings) -> None:
        self._policy = ClaimPolicy.of(settings, history=History(keep=_HISTORY_KEPT))
        self._unmeasured = A6000.faster(settings.engine.time_scale)
        engine = database.make_engine(
            settings.database,
            pool_size=_CONNECTIONS,
            name="longbatch-api-queue",
            sealer=ContentSealer.of(settings),
        )
        # All statements of a snapshot see the same moment.
        self._pool = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self._sessions = database.make_sessions(self._pool)
        self._threads = CapacityLimiter(_CONNECTIONS)
        self._forecasts: dict[str, CachedValue[QueueForecast]] = {}
        self._depths: dict[str, CachedValue[QueueDepth]] = {}

    async def of(self, job: Job) -> QueuePosition | None:
        """Find the queue position of this job.

        Returns:
            None: the job runs or has ended, or its position cannot be found now.
        """
        if job.state not in _WAITING:
            return None
        if job.state != JobState.QUEUED:
            return queue_position.position_of(job, None, None)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                forecast = await self._forecast(job.model).get()
                depth = (
                    await self._depth(job.model).get() if queue_position.is_far_back(forecast, job) else None
                )
            return queue_position.position_of(job, forecast, depth)
        except Exception as error:  # noqa: BLE001  # callers want the job above all, and get it without
            telemetry.logger().error(
                telemetry.LOOP_FAILED, loop="queue-positions", error=type(error).__name__
            )
            return None

    async def forecast_of(self, model: str) -> QueueForecast | None:
        """Forecast the queue of this model, at most seconds old; None: it cannot be found now."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await self._forecast(model).get()
        except Exception as error:  # noqa: BLE001  # a page shows what it can without
            telemetry.logger().error(
                telemetry.LOOP_FAILED, loop="queue-positions", error=type(error).__name__
            )
            return None

    async def seconds_until_done(self, estimate: Estimate, model: str) -> float | None:
        """Estimate the seconds until such lines have run after all jobs queued now.

        Returns:
            None: no engine runs.

        Raises:
            UnavailableError: the database does not answer; try again.
        """
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                snapshot = (await self._forecast(model).get()).snapshot
                engines = [state for _, state in snapshot.up]
                work = partial(seconds_until_done, estimate=estimate, model=model, engines=engines)
                return await self._in_thread(partial(self._read, work)) if engines else None
        except (DBAPIError, TimeoutError, PoolTimeoutError) as error:
            if isinstance(error, DBAPIError) and not is_lost(error):
                raise
            raise UnavailableError("The database does not answer at the moment; try again.") from error

    async def close(self) -> None:
        """Stop all look-ups and close the connections."""
        for forecast in self._forecasts.values():
            await forecast.close()
        for depth in self._depths.values():
            await depth.close()
        self._pool.dispose()

    def _forecast(self, model: str) -> CachedValue[QueueForecast]:
        if model not in self._forecasts:
            make = partial(self._in_thread, partial(self._forecast_queue, model))
            self._forecasts[model] = CachedValue(
                make, seconds=_FORECAST_SECONDS, old_seconds=_FORECAST_SECONDS
            )
        return self._forecasts[model]

    def _depth(self, model: str) -> CachedValue[QueueDepth]:
        if model not in self._depths:
            count = partial(self._read, partial(backlog.count, model=model))
            make = partial(self._in_thread, count)
            self._depths[model] = CachedValue(make, seconds=_DEPTH_SECONDS, old_seconds=_DEPTH_SECONDS)
        return self._depths[model]

    def _forecast_queue(self, model: str) -> QueueForecast:
        take = partial(take_snapshot, model=model, policy=self._policy, unmeasured=self._unmeasured)
        return queue_position.forecast_queue(self._read(take), self._policy)

    def _read(self, work: Callable[[Session], T]) -> T:
        with database.transaction(self._sessions) as session:
            isolation.enter_across(session)
            return work(session)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._threads, abandon_on_cancel=True)
