import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from api.runtime.cached_value import CachedValue

LONG = 3600.0


class Maker:
    """Makes 1, 2, 3, …, each when it is let."""

    def __init__(self) -> None:
        self.num_made = 0
        self.may_make = asyncio.Event()
        self.may_make.set()
        self.made_twice = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def __call__(self) -> int:
        self.is_asked.set()
        await self.may_make.wait()
        self.num_made += 1
        if self.num_made == 2:
            self.made_twice.set()
        return self.num_made


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
        shared = CachedValue(Maker(), seconds=1e-9, old_seconds=0)
        seen = [await shared.get()]
        while seen[-1] == 1:  # making took some time, for which it is good too
            seen.append(await shared.get())
        assert seen[-1] == 2

    run(test)


def test_one_that_is_good_for_no_time_is_made_for_each_caller() -> None:
    async def test() -> None:
        async def make() -> int:
            await asyncio.sleep(0.01)
            numbers.append(len(numbers))
            return numbers[-1]

        numbers: list[int] = []
        shared = CachedValue(make, seconds=0, old_seconds=0)
        assert [await shared.get() for _ in range(3)] == [0, 1, 2]

    run(test)


def test_an_old_one_is_given_while_a_new_one_is_made() -> None:
    async def test() -> None:
        maker = Maker()
        shared = CachedValue(maker, seconds=1e-9, old_seconds=LONG)
        assert await shared.get() == 1
        maker.may_make.clear()
        maker.is_asked.clear()
        while not maker.is_asked.is_set():  # making took some time, for which it is good too
            assert await shared.get() == 1
            await asyncio.sleep(0)
        assert {await shared.get() for _ in range(1000)} == {1}
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
