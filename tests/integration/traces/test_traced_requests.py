"""Whether a request is traced: off, by a ratio, or as its caller says; a collector that hangs delays none."""

from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from api_server import Serve
from jobs.models import Job
from jobs.traces.context import TraceContext
from support import eventually
from tracing.collector import collecting

Sessions = sessionmaker[Session]
CALLER = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


def submit(http: httpx2.Client, *traceparents: str) -> None:
    headers = [(b"traceparent", each.encode()) for each in traceparents]
    asked = http.post("/v1/jobs", json={"input": "short", "max_tokens": 4}, headers=headers)
    assert asked.status_code == 202, asked.text


def stored(sessions: Sessions) -> list[TraceContext | None]:
    with sessions() as session:
        found = session.scalars(select(Job.traceparent).order_by(Job.id)).all()
    return [None if each is None else TraceContext.parse(each) for each in found]


def test_while_traces_are_off_a_caller_s_trace_is_ignored(http: httpx2.Client, sessions: Sessions) -> None:
    submit(http, str(CALLER))
    assert stored(sessions) == [None]


def test_a_collector_that_hangs_delays_no_request_and_no_stop(serve: Serve, sessions: Sessions) -> None:
    with collecting() as collector:
        collector.going_on.clear()
        settings = {"LONGBATCH_TRACES__ENDPOINT": collector.url, "LONGBATCH_TRACES__TIMEOUT_SECONDS": "60"}
        with serve(**settings) as process, process.client() as http:
            submit(http)
            eventually(lambda: collector.num_requests)
            submit(http, str(CALLER))
            submit(http, str(CALLER), str(CALLER))
    mine, callers, doubled = stored(sessions)
    assert mine is not None
    assert callers is not None
    assert doubled is not None
    assert callers.trace_id == CALLER.trace_id != mine.trace_id
    assert callers.span_id != CALLER.span_id, "below it is the request's own span"
    assert doubled.trace_id != CALLER.trace_id, "two headers say nothing"


def test_requests_that_are_stored_together_keep_their_own_traces(serve: Serve, sessions: Sessions) -> None:
    given = {f"{number:032x}" for number in range(1, 41)}
    with (
        collecting() as collector,
        serve(LONGBATCH_TRACES__ENDPOINT=collector.url) as process,
        process.client() as http,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(lambda each: submit(http, str(TraceContext(each, CALLER.span_id))), given))
        eventually(lambda: len(collector.spans) == len(given))
        requests = {each.trace_id: each.span_id for each in collector.spans}
    found = [each for each in stored(sessions) if each is not None]
    assert len(found) == len(given)
    assert {each.trace_id: each.span_id for each in found} == requests


@pytest.mark.parametrize("ratio", ["0", "1"])
def test_a_ratio_decides_of_callers_that_are_not_followed(
    serve: Serve, sessions: Sessions, ratio: str
) -> None:
    with collecting() as collector:
        settings = {
            "LONGBATCH_TRACES__ENDPOINT": collector.url,
            "LONGBATCH_TRACES__FOLLOW_CALLERS": "false",
            "LONGBATCH_TRACES__RATIO": ratio,
        }
        with serve(**settings) as process, process.client() as http:
            submit(http, str(CALLER))
            submit(http, str(TraceContext(CALLER.trace_id, CALLER.span_id, is_sampled=False)))
            submit(http)
            num_spans = 3 if ratio == "1" else 0
            eventually(lambda: len(collector.spans) == num_spans)
        found = stored(sessions)
    assert [each is not None for each in found] == [ratio == "1"] * 3
    assert {each.trace_id for each in found[:2] if each} <= {CALLER.trace_id}
    assert len(collector.spans) == num_spans
