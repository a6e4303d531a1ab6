"""How often a forecast is made for the pictures of engines."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID

import pytest

from api.console.engines.activity import Bar, EngineActivity
from api.console.engines.forecasts import SECONDS, PictureForecasts
from jobs.engines.capacity import Capacity
from jobs.forecast.queue_position import QueueForecast
from jobs.forecast.snapshot import QueueSnapshot, Registered
from jobs.forecast.start_times import Forecast
from jobs.ids import uuid7

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def engine(*running: UUID, is_up: bool = True) -> EngineActivity:
    bars = [
        Bar(uuid7(), each, None, NOW, None, None, None, "held", False, 1, 0, None, 100, 0) for each in running
    ]
    return EngineActivity("e", "m", 4, 0, 100, 64, NOW, is_up, None, None, bars, is_cut=False)


class Queue:
    """A queue whose forecasts are counted, and a clock that is set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_made = 0
        self.known: list[UUID] = []
        self.all_look = asyncio.Event()
        self.pictures = PictureForecasts(self.make, clock=lambda: self.now)

    async def make(self, _model: str) -> QueueForecast:
        self.num_made += 1
        registered = [Registered("e", Capacity(4, 100, 64, 1000, 1000), is_up=True)]
        snapshot = QueueSnapshot(NOW, registered, [], {}, {}, {}, {})
        ends = dict.fromkeys(self.known, 1.0)
        found = Forecast(frozenset(), frozenset(), [], {}, None, 0.0, {}, ends)
        await self.all_look.wait()
        return QueueForecast(snapshot, found, {}, {}, mean_tokens=0.0)

    def watch(self, shown: EngineActivity, *, watchers: int = 20) -> QueueForecast:
        """So many look at the engine's picture at once."""

        async def look_last() -> QueueForecast | None:
            self.all_look.set()
            return await self.pictures.of(shown)

        async def look() -> QueueForecast:
            self.all_look = asyncio.Event()
            others = (self.pictures.of(shown) for _ in range(watchers - 1))
            *_, found = await asyncio.gather(*others, look_last())
            assert found is not None
            return found

        return asyncio.run(look())


@pytest.fixture
def queue() -> Queue:
    return Queue()


def test_a_forecast_that_knows_all_lasts_for_its_seconds(queue: Queue) -> None:
    queue.watch(engine())
    for _ in range(5):
        queue.now += SECONDS / 5 - 0.1
        queue.watch(engine())
    assert queue.num_made == 1
    queue.now = SECONDS
    queue.watch(engine())
    assert queue.num_made == 2


def test_a_job_that_it_does_not_know_makes_it_anew_at_once(queue: Queue) -> None:
    job_id = uuid7()
    queue.watch(engine())
    queue.now, queue.known = 1.0, [job_id]
    found = queue.watch(engine(job_id))
    assert job_id in found.forecast.ends
    assert queue.num_made == 2


def test_where_something_unknown_happens_all_the_time_it_is_made_no_more_often_on_average(
    queue: Queue,
) -> None:
    rounds = 10
    for _ in range(int(rounds * SECONDS)):
        queue.watch(engine(uuid7()))
        queue.now += 1
    assert queue.num_made <= rounds + 1


def test_an_engine_that_takes_no_jobs_needs_no_other_forecast(queue: Queue) -> None:
    for _ in range(10):
        queue.watch(engine(uuid7(), is_up=False))
    assert queue.num_made == 1
