"""`queue` of a job that waits, as callers see it."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import httpx2
import pytest
from pydantic import TypeAdapter
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs import ids
from jobs.database import database_now
from jobs.engines import registry
from jobs.states import TERMINAL, JobState, WaitReason
from jobs.views import QueueReply
from support import CAPACITY, ENGINE, eventually, job_in

SERVED_MODEL = "llama-3.1-8b-instruct"


@pytest.fixture
def engine_is_up(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:  # noqa: ARG001  # after it is empty
    with sessions.begin() as session:
        registry.register(session, ENGINE, SERVED_MODEL, CAPACITY, now=database_now(session))


def submit(http: httpx2.Client) -> str:
    path: str = http.post("/v1/jobs", json={"input": "a"}).headers["location"]
    return path


def reason_at(http: httpx2.Client, path: str) -> str | None:
    queue = http.get(path).json()["queue"]
    return None if queue is None else queue["reason"]


@pytest.mark.usefixtures("engine_is_up")
def test_a_queued_job_says_where_it_stands(http: httpx2.Client) -> None:
    path = submit(http)
    eventually(lambda: http.get(path).json()["queue"]["reason"] is None)
    queue = http.get(path).json()["queue"]
    assert queue["position"] == 1
    assert abs((datetime.fromisoformat(queue["estimated_start_at"]) - datetime.now(UTC)).total_seconds()) < 10


def test_a_job_without_an_engine_says_so(http: httpx2.Client) -> None:
    path = submit(http)
    eventually(lambda: reason_at(http, path) == "engine_down")
    assert http.get(path).json()["queue"] == {
        "position": None,
        "reason": "engine_down",
        "estimated_start_at": None,
        "detail": None,
    }


def test_a_job_that_is_counted_says_so(http: httpx2.Client) -> None:
    path = http.post("/v1/jobs", json={"input": "a word " * 5000}).headers["location"]
    assert reason_at(http, path) == "preparing"


@pytest.mark.parametrize("state", [JobState.RUNNING, *sorted(TERMINAL)])
def test_a_job_that_waits_for_nothing_has_no_place(
    http: httpx2.Client, sessions: sessionmaker[Session], state: JobState
) -> None:
    with sessions.begin() as session:
        job_id = ids.job_id(job_in(session, state).id)
    assert http.get(f"/v1/jobs/{job_id}").json()["queue"] is None


@pytest.mark.usefixtures("engine_is_up")
def test_the_tag_is_of_the_job_alone(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    path = submit(http)
    eventually(lambda: reason_at(http, path) is None)
    tag = http.get(path).headers["etag"]
    with sessions.begin() as session:
        registry.pause(session, ENGINE, "the engine is not ready")
    eventually(lambda: reason_at(http, path) == "engine_down")
    assert http.get(path).headers["etag"] == tag
    unchanged = http.get(path, headers={"If-None-Match": tag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert http.post(f"{path}/cancel").headers["etag"] != tag


def test_a_wait_that_ends_early_says_where_the_job_stands(http: httpx2.Client) -> None:
    path = submit(http)
    eventually(lambda: reason_at(http, path) == "engine_down")
    assert http.get(f"{path}?wait=0.2").json()["queue"]["reason"] == "engine_down"


def test_lists_and_other_answers_do_not_have_it(http: httpx2.Client) -> None:
    made = http.post("/v1/jobs", json={"input": "a"}).json()
    listed = http.get("/v1/jobs").json()["data"][0]
    cancelled = http.post(f"/v1/jobs/{made['id']}/cancel").json()
    assert not any("queue" in each for each in (made, listed, cancelled))


@pytest.mark.usefixtures("engine_is_up")
def test_many_who_ask_share_a_look_on_two_connections(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    paths = [submit(http) for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda path: http.get(path).json(), paths * 10))
    assert all(each["queue"] for each in answers)
    counted = text("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'longbatch-api-queue'")
    with sessions() as session:
        assert (session.scalar(counted) or 0) <= 2


def test_every_reason_is_documented() -> None:
    described = TypeAdapter(QueueReply).json_schema()["properties"]["reason"]["description"]
    assert all(f"`{reason}`" in described for reason in WaitReason)
