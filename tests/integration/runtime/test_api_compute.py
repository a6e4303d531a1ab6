"""Threads of the API shared by tenants: one turn each, and a process of its own for long bodies."""

import asyncio
import json
import os
import signal
import threading
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from api.http.body import parse
from api.jobs.requests import JobRequest
from api.runtime import compute
from api.runtime.compute import LONG_BYTES, Compute, EstimateLimitError
from jobs.errors import InvalidRequestError, UnavailableError

LONG = LONG_BYTES + 1
SHORT = 1000


class Gate:
    """Work that lasts until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()

    def work(self) -> None:
        self.begun.set()
        assert self.open.wait(20)

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 20)


def start(compute: Compute, tenant_id: UUID, num_bytes: int, gate: Gate) -> "asyncio.Task[None]":
    return asyncio.create_task(compute.run(tenant_id, num_bytes, gate.work))


async def until_all_wait(compute: Compute) -> None:
    """Serve short work of another tenant, which asks after all tasks that exist."""
    await asyncio.create_task(compute.run(uuid4(), SHORT, lambda: None))


def test_a_tenants_second_long_body_waits_while_another_tenants_short_one_is_served() -> None:
    async def scenario() -> None:
        compute, busy, other = Compute(2), uuid4(), uuid4()
        first, second, short = Gate(), Gate(), Gate()
        short.open.set()
        tasks = [start(compute, busy, LONG, first)]
        await first.until_begun()
        tasks.append(start(compute, busy, LONG, second))
        await start(compute, other, SHORT, short)
        assert not second.begun.is_set()
        first.open.set()
        await second.until_begun()
        second.open.set()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_long_bodies_of_many_tenants_leave_a_thread_to_short_ones() -> None:
    async def scenario() -> None:
        compute = Compute(3)
        gates = [Gate() for _ in range(5)]
        tasks = [start(compute, uuid4(), LONG, gate) for gate in gates]
        for gate in gates[:2]:
            await gate.until_begun()
        short = Gate()
        short.open.set()
        await start(compute, uuid4(), SHORT, short)
        assert [gate.begun.is_set() for gate in gates] == [True, True, False, False, False]
        for gate in gates:
            gate.open.set()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_tenants_take_turns_however_much_one_of_them_sends() -> None:
    async def scenario() -> None:
        compute, busy, other = Compute(2), uuid4(), uuid4()
        served: list[UUID] = []
        gate = Gate()
        tasks = [start(compute, uuid4(), LONG, gate)]
        await gate.until_begun()
        tasks += [
            asyncio.create_task(compute.run(tenant_id, LONG, served.append, tenant_id))
            for tenant_id in [busy] * 5 + [other]
        ]
        await until_all_wait(compute)
        gate.open.set()
        await asyncio.gather(*tasks)
        assert served[:3] == [busy, other, busy]
        assert not compute._long._running
        assert not compute._long._waiting

    asyncio.run(scenario())


def test_a_caller_that_leaves_its_line_gives_its_turn_away() -> None:
    async def scenario() -> None:
        compute, tenant_id = Compute(2), uuid4()
        gate, last = Gate(), Gate()
        last.open.set()
        first = start(compute, tenant_id, LONG, gate)
        await gate.until_begun()
        leaving = start(compute, tenant_id, LONG, Gate())
        following = start(compute, tenant_id, LONG, last)
        await until_all_wait(compute)
        leaving.cancel()
        gate.open.set()
        await asyncio.gather(first, following)

    asyncio.run(scenario())


def test_stored_bytes_that_are_slow_to_come_hold_up_no_work() -> None:
    async def scenario() -> None:
        compute, tenant_id = Compute(2), uuid4()
        slow = [Gate() for _ in range(4)]
        tasks = [asyncio.create_task(compute.store(gate.work)) for gate in slow]
        for gate in slow:
            await gate.until_begun()
        assert await compute.run(tenant_id, SHORT, lambda: 1) == 1
        assert await compute.run(tenant_id, LONG, lambda: 2) == 2
        for gate in slow:
            gate.open.set()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_a_tenant_that_is_alone_leaves_one_thread_to_others_whatever_it_sends() -> None:
    async def scenario() -> None:
        compute, busy = Compute(3), uuid4()
        gates = [Gate() for _ in range(6)]
        tasks = [
            start(compute, busy, num_bytes, gate)
            for num_bytes, gate in zip([SHORT, LONG] * 3, gates, strict=True)
        ]
        for gate in gates[:4]:
            await gate.until_begun()
        await until_all_wait(compute)
        assert [gate.begun.is_set() for gate in gates] == [True] * 4 + [False] * 2
        for gate in gates:
            gate.open.set()
        await asyncio.gather(*tasks)

    asyncio.run(scenario())


def test_a_tenants_third_estimate_is_refused_and_says_when_to_come_again() -> None:
    async def scenario() -> None:
        compute, tenant_id = Compute(2), uuid4()
        async with compute.estimate(tenant_id), compute.estimate(tenant_id):
            with pytest.raises(EstimateLimitError) as caught:
                async with compute.estimate(tenant_id):
                    pass
            assert (caught.value.limit, caught.value.retry_after_seconds) == (2, 5)
            async with compute.estimate(uuid4()):
                pass
        async with compute.estimate(tenant_id):
            pass

    asyncio.run(scenario())


def test_long_bodies_are_worked_on_in_one_other_process_and_short_ones_in_this() -> None:
    async def scenario() -> None:
        compute, tenant_id = Compute(), uuid4()
        assert await compute.run_apart(tenant_id, SHORT, os.getpid) == os.getpid()
        first, second = [await compute.run_apart(tenant_id, LONG, os.getpid) for _ in range(2)]
        assert first == second != os.getpid()

    asyncio.run(scenario())


def test_tenants_take_turns_in_the_other_process_on_many_cores(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def scenario() -> None:
        compute, busy, other = Compute(16), uuid4(), uuid4()
        served: list[UUID] = []

        async def serve(tenant_id: UUID) -> None:
            await compute.run_apart(tenant_id, LONG, abs, -1)
            served.append(tenant_id)

        first = asyncio.create_task(compute.run_apart(busy, LONG, Path.read_bytes, pipe))
        writer = await asyncio.to_thread(pipe.open, "wb")  # returns once the process reads
        tasks = [asyncio.create_task(serve(tenant_id)) for tenant_id in [busy] * 3 + [other]]
        await until_all_wait(compute)
        writer.close()
        await asyncio.gather(first, *tasks)
        assert other in served[:2]

    asyncio.run(scenario())


def test_what_the_other_process_refuses_is_refused_with_the_same_words() -> None:
    raw = json.dumps({"task": "summarize", "input": "secret" * 99, "max_tokens": 0}).encode()
    with pytest.raises(InvalidRequestError) as here:
        parse(JobRequest, raw)

    async def scenario() -> None:
        await Compute().run_apart(uuid4(), LONG, parse, JobRequest, raw)

    with pytest.raises(InvalidRequestError) as there:
        asyncio.run(scenario())
    assert vars(there.value) == vars(here.value)
    assert here.value.param == "max_tokens"


def test_a_bad_request_is_refused_late_and_holds_no_place_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_REFUSAL_DELAY_PER_WORK", 1e9)
    monkeypatch.setattr(compute, "_MAX_REFUSAL_DELAY_SECONDS", 60)

    async def scenario() -> None:
        threads, tenant_id = Compute(2), uuid4()
        refused = asyncio.create_task(threads.run(tenant_id, LONG, parse, JobRequest, b"{}"))
        for _ in range(3):  # one long body of a tenant at a time
            assert await threads.run(tenant_id, LONG, abs, -1) == 1
        assert not refused.done()
        refused.cancel()

    asyncio.run(scenario())


def test_a_process_that_ends_fails_its_own_work_alone() -> None:
    async def scenario() -> None:
        compute, tenant_id = Compute(), uuid4()
        with pytest.raises(UnavailableError):
            await compute.run_apart(tenant_id, LONG, signal.raise_signal, signal.SIGKILL)
        assert await compute.run_apart(tenant_id, LONG, abs, -1) == 1

    asyncio.run(scenario())
