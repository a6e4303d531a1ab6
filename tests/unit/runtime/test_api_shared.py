import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from api.runtime.cached_value import CachedValue

LONG = 3600.0


class Maker:
    """Makes 1, 2, 3, …, each when it is let, and in so many seconds of a clock that is set."""

    def __init__(self, *, takes: float = 0.0) -> None:
        self.now = 0.0
        self.takes = takes
        self.num_made = 0
        self.may_make = asyncio.Event()
        self.may_make.set()
        self.made_twice = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def __call__(self) -> int:
        self.is_asked.set()
        await self.may_make.wait()
        self.now += self.takes
        self.num_made += 1
        if self.num_made == 2:
            self.made_twice.set()
        return self.num_made

    def clock(self) -> float:
        return self.now


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


def test_all_who_ask_at_once_get_the_one_that_is_made() -> None:
    async def test() -> None:
        maker = Maker()
        shared = CachedValue(maker, seconds=LONG, old_seconds=0)
        assert await asyncio.gather(*(shared.get() for _ in range(100))) == [1] * 100
        assert await shared.get() == 1

    run(test)


def test_one_that_is_too_old_is_made_anew() -> None:
    async def test() -> None:
        maker = Maker()
        shared = CachedValue(maker, seconds=10, old_seconds=0, clock=maker.clock)
        seen = []
        for maker.now in (0, 9.9, 10):
            seen.append(await shared.get())
        assert seen == [1, 1, 2]

    run(test)


def test_one_that_is_not_worth_keeping_is_made_again_for_the_next_caller() -> None:
    async def test() -> None:
        shared = CachedValue(Maker(), seconds=LONG, old_seconds=LONG, keeps=lambda made: made > 2)
        assert [await shared.get() for _ in range(4)] == [1, 2, 3, 3]

    run(test)


def test_one_that_takes_long_to_make_is_good_for_longer() -> None:
    async def test() -> None:
        maker = Maker(takes=1)
        shared = CachedValue(maker, seconds=10, old_seconds=0, clock=maker.clock)
        seen = [await shared.get()]
        for maker.now in (20.9, 21):
            seen.append(await shared.get())
        assert seen == [1, 1, 2]

    run(test)


def test_one_that_is_good_for_no_time_is_made_for_each_caller() -> None:
    async def test() -> None:
        maker = Maker(takes=1)
        shared = CachedValue(maker, seconds=0, old_seconds=0, clock=maker.clock)
        assert [await shared.get() for _ in range(3)] == [1, 2, 3]

    run(test)


def test_an_old_one_is_given_while_a_new_one_is_made() -> None:
    async def test() -> None:
        maker = Maker()
        shared = CachedValue(maker, seconds=10, old_seconds=LONG, clock=maker.clock)
        assert await shared.get() == 1
        maker.may_make.clear()
        maker.is_asked.clear()
        maker.now = 10
        assert {await shared.get() for _ in range(1000)} == {1}
        await maker.is_asked.wait()
        maker.may_make.set()
        await maker.made_twice.wait()
        assert await shared.get() == 2

    run(test)


def test_a_caller_who_gives_up_stops_nobody_else() -> None:
    async def test() -> None:
        maker = Maker()
        maker.may_make.clear()
        shared = CachedValue(maker, seconds=LONG, old_seconds=0)
        impatient, patient = (asyncio.create_task(shared.get()) for _ in range(2))
        await maker.is_asked.wait()
        impatient.cancel()
        maker.may_make.set()
        assert await patient == 1
        assert impatient.cancelled()

    run(test)


def test_after_a_failure_the_next_caller_has_it_made_again() -> None:
    async def test() -> None:
        tries: Iterator[ValueError | int] = iter([ValueError("once"), 7])

        async def make() -> int:
            found = next(tries)
            if isinstance(found, ValueError):
                raise found
            return found

        shared = CachedValue(make, seconds=LONG, old_seconds=0)
        with pytest.raises(ValueError, match="once"):
            await shared.get()
        assert await shared.get() == 7

    run(test)


def test_nothing_is_being_made_after_the_end() -> None:
    async def test() -> None:
        maker = Maker()
        maker.may_make.clear()
        shared = CachedValue(maker, seconds=LONG, old_seconds=0)
        asking = asyncio.create_task(shared.get())
        await maker.is_asked.wait()
        await shared.close()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert maker.num_made == 0

    run(test)
