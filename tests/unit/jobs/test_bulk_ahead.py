"""Slices of a bulk request are parsed ahead: what was stored is reported, and nothing is left."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from api.http.body import Line
from api.jobs import bulk
from jobs.errors import LongbatchError, UnavailableError

NUM_LINES = 3 * 300


async def lines() -> AsyncIterator[Line]:
    for number in range(1, NUM_LINES + 1):
        yield Line(number, b"{}")


async def submit() -> bulk.BulkReport:
    settings = SimpleNamespace(api=SimpleNamespace(max_bulk_lines=50_000))
    services: Any = SimpleNamespace(check_destination=None, settings=settings)
    caller: Any = None
    idempotency: Any = SimpleNamespace(is_given=False)
    report = await bulk.submit_lines(services, lines(), caller=caller, idempotency=idempotency)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "no task outlives the request"
    return report


@pytest.mark.parametrize("first", ["parsing", "storing"])
def test_what_was_stored_is_reported_when_storing_and_the_next_parsing_fail_together(
    monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    failed = {"parsing": asyncio.Event(), "storing": asyncio.Event()}

    async def fail(what: str) -> None:
        """Wait until the other has failed, unless this is to fail first."""
        if what != first:
            await failed[first].wait()
        failed[what].set()

    async def parse(_services: object, some: Sequence[Line], _caller: object) -> bulk.Parsed:
        if some[0].number > 600:
            await fail("parsing")
            raise UnavailableError
        return {}, []

    async def store(
        _services: object, _parsed: object, report: bulk.BulkReport, *_: object, **__: object
    ) -> LongbatchError | None:
        if not report.ids:
            report.ids += ["job_1"] * 300
            return None
        await fail("storing")
        return UnavailableError()

    monkeypatch.setattr(bulk, "_parse_slice", parse)
    monkeypatch.setattr(bulk, "_submit_slice", store)
    report = asyncio.run(submit())
    assert len(report.ids) == 300
    assert report.num_rejected == 300, "the last slice; storing rejects those of the second itself"
