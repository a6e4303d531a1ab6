"""Readers of live output that come and go: none is left behind, and each delta is read once."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, closing
from typing import Any
from uuid import UUID

import httpx2
import pytest
from pydantic import SecretStr
from sqlalchemy.orm import Session, sessionmaker

from api.http.sse import merged
from api.runtime.database import Transactions
from api.runtime.live_output import LiveReader
from api.runtime.row_changes import RowChanges
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import doorbell, ids, lifecycle, live_output, queries
from jobs.database import transaction
from jobs.ids import uuid7
from jobs.live_output import Delta
from jobs.models import DEFAULT_TENANT
from jobs.settings import BrokerSettings, DatabaseSettings
from support import submit_one


def reader_of(url: str) -> LiveReader:
    return LiveReader(BrokerSettings(url=SecretStr(url), socket_timeout_seconds=5))


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(8):
            await work

    asyncio.run(bounded())


def test_a_reader_that_leaves_while_the_broker_does_not_answer_is_forgotten() -> None:
    async def leave_early() -> None:
        connected = asyncio.Event()

        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set()
            with closing(writer):
                await reader.read(-1)

        frozen = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
        port = frozen.sockets[0].getsockname()[1]
        live_reader = reader_of(f"redis://127.0.0.1:{port}")
        running = asyncio.create_task(live_reader.run())
        reading = asyncio.ensure_future(anext(live_reader.deltas(uuid7())))
        await connected.wait()
        for task in (reading, running):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert live_reader.num_listeners == 0
        frozen.close()

    run(leave_early())


def tell(valkey: EmbeddedValkey, job_id: UUID, *deltas: Delta) -> None:
    with closing(doorbell.connect(valkey.url, socket_timeout=5)) as broker:
        for delta in deltas:
            broker.xadd(live_output.stream_key(job_id), live_output.encode(delta))  # type: ignore[arg-type]  # texts


def test_a_reader_that_joins_later_makes_no_other_read_a_delta_twice(valkey: EmbeddedValkey) -> None:
    job_id = uuid7()
    told = [Delta(number, "x", number + 1) for number in range(3)]

    async def two_readers() -> None:
        reader = reader_of(valkey.url)
        reading = asyncio.create_task(reader.run())
        tell(valkey, job_id, *told[:2])
        async with aclosing(reader.deltas(job_id)) as first, aclosing(reader.deltas(job_id)) as second:
            heard = [await anext(first), await anext(first)]
            assert [await anext(second), await anext(second)] == heard == told[:2]
            tell(valkey, job_id, told[2])
            assert await anext(first) == await anext(second) == told[2]
        assert reader.num_listeners == 0
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    run(two_readers())


def test_a_reader_that_leaves_leaves_no_task_behind() -> None:
    async def silent() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.Event().wait()

    async def leave() -> None:
        async def follow() -> None:
            async with aclosing(merged(silent())) as changes:
                async for _ in changes:
                    first.set()

        first = asyncio.Event()
        following = asyncio.create_task(follow())
        await first.wait()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        gc.collect()
        assert asyncio.all_tasks() == {asyncio.current_task()} | outer

    async def counted() -> None:
        outer.update(asyncio.all_tasks())
        await leave()

    outer: set[asyncio.Task[Any]] = set()
    run(counted())


@pytest.mark.parametrize("last", ["9" * 5000, "-1", "x", "4"])
def test_any_last_event_id_is_answered(
    http: httpx2.Client, sessions: sessionmaker[Session], last: str
) -> None:
    with sessions.begin() as session:
        job_id = ids.job_id(submit_one(session).id)
    with http.stream("GET", f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": last}) as answer:
        assert answer.status_code == 200
        assert next(answer.iter_lines()) == f"id: {last if last == '4' else 0}"


def test_followers_of_a_row_hear_of_its_end_and_newcomers_of_its_state_without_a_poll(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    with transaction(sessions) as session:
        first, second = (submit_one(session).id for _ in range(2))

    async def follow() -> None:
        transactions = Transactions(database_settings)
        changes = RowChanges(transactions, queries.read_status, interval=3600)
        looking = asyncio.create_task(changes.run())
        async with (
            aclosing(changes.changes(first)) as of_first,
            aclosing(changes.changes(second)) as of_second,
        ):
            assert (await anext(of_first)).state == "queued"
            assert (await anext(of_second)).state == "queued"
            await asyncio.to_thread(cancel, sessions, first)
            changes.poll_now({first})
            assert (await anext(of_first)).state == "cancelled"
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await transactions.close()

    run(follow())


def cancel(sessions: sessionmaker[Session], job_id: UUID) -> None:
    with transaction(sessions) as session:
        lifecycle.cancel(session, job_id, tenant_id=DEFAULT_TENANT)
