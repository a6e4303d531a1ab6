"""Requests are counted in Redis for all API processes together, most of them ahead of time."""

import asyncio
from uuid import UUID

import pytest
from pydantic import SecretStr

from api.runtime import rate_limits
from api.runtime.rate_limits import RateLimit, Rates
from cli.stack.servers.valkey import EmbeddedValkey
from jobs.errors import RequestRateError
from jobs.ids import uuid7
from jobs.settings import BrokerSettings
from support import PATIENCE


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine Redis may answer later than requests wait for it; then each process counts alone."""
    monkeypatch.setattr(rate_limits, "_TIMEOUT_SECONDS", PATIENCE)


async def accepted(processes: list[Rates], tenant_id: UUID, *, limit: int, asked: int) -> int:
    num_accepted = 0
    for number in range(asked):
        try:
            await processes[number % len(processes)].hit(RateLimit(tenant_id, limit))
        except RequestRateError:
            continue
        num_accepted += 1
    return num_accepted


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(("limit", "at_least"), [(7, 7), (120, 118), (3000, 2900)])
def test_processes_together_accept_no_more_than_the_limit_and_nearly_all_of_it(
    valkey: EmbeddedValkey, limit: int, at_least: int
) -> None:
    async def run() -> int:
        processes = [Rates(BrokerSettings(url=SecretStr(valkey.url))) for _ in range(2)]
        try:
            return await accepted(processes, uuid7(), limit=limit, asked=limit + 200)
        finally:
            for each in processes:
                await each.close()

    assert at_least <= asyncio.run(run()) <= limit


@pytest.mark.usefixtures("patient")
def test_what_is_left_goes_down_by_one_with_each_request(valkey: EmbeddedValkey) -> None:
    async def run() -> list[int]:
        rates = Rates(BrokerSettings(url=SecretStr(valkey.url)))
        tenant_id = uuid7()
        try:
            return [(await rates.hit(RateLimit(tenant_id, 5000))).remaining for _ in range(100)]
        finally:
            await rates.close()

    assert asyncio.run(run())[:50] == list(range(4999, 4949, -1))


@pytest.mark.usefixtures("patient")
def test_requests_charged_together_take_all_that_is_left_and_then_are_refused(valkey: EmbeddedValkey) -> None:
    async def run() -> list[int]:
        rates = Rates(BrokerSettings(url=SecretStr(valkey.url)))
        tenant_id = uuid7()
        left = []
        try:
            left.append((await rates.hit(RateLimit(tenant_id, 10))).remaining)
            await rates.charge(RateLimit(tenant_id, 10), num_requests=5)
            left.append((await rates.hit(RateLimit(tenant_id, 10))).remaining)
            with pytest.raises(RequestRateError):
                await rates.charge(RateLimit(tenant_id, 10), num_requests=300)
            with pytest.raises(RequestRateError):
                await rates.hit(RateLimit(tenant_id, 10))
        finally:
            await rates.close()
        return left

    assert asyncio.run(run()) == [9, 3]
