"""A process is killed with jobs in flight; all jobs complete, each with exactly one result."""

import signal

import psycopg
import pytest

from cli.stack.ready import API, INFERENCE_WORKER, REDIS, SERVICE_WORKER, TRITON
from cli.stack.stack import Stack
from support import eventually
from system_support import Client, text_of

pytestmark = pytest.mark.timeout(300)

ENGINE_MODE = "synthetic"  # it goes on to max_tokens, so there is always something in flight
TIME_SCALE = 4.0
KILLS = True


def count(stack: Stack, query: str) -> int:
    with psycopg.connect(stack.urls.database_url or "") as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("victim", [INFERENCE_WORKER, SERVICE_WORKER, TRITON, REDIS, API])
def test_a_kill_loses_and_doubles_nothing(stack: Stack, client: Client, victim: str) -> None:
    sizes = [100_000, 3000, 30_000, 6000, 3000, 50_000, 1000, 12_000]
    jobs = [client.submit(text_of(size, start=size), task="summarize", max_tokens=200) for size in sizes]
    client.streaming(jobs[-1]["id"])  # the first may have ended while the last were submitted
    before = stack.pids[victim]
    stack.send(victim, signal.SIGKILL)
    ended = [client.finished(job["id"], timeout=120) for job in jobs]
    assert [job["state"] for job in ended] == ["completed"] * len(jobs)
    assert stack.pids[victim] != before
    ids = ", ".join(f"'{job['id'].removeprefix('job_')}'" for job in jobs)
    assert count(stack, f"SELECT count(*) FROM results WHERE job_id IN ({ids})") == len(jobs)  # noqa: S608
    assert count(stack, f"SELECT count(*) FROM webhook_events WHERE job_id IN ({ids})") == len(jobs)  # noqa: S608
    of_these = f"SELECT count(*) FROM attempts WHERE job_id IN ({ids})"  # noqa: S608
    assert count(stack, f"{of_these} AND outcome = 'completed'") == len(jobs)
    was_in_flight = victim in {INFERENCE_WORKER, TRITON}
    assert (count(stack, f"{of_these} AND outcome = 'lost'") > 0) == was_in_flight
    eventually(lambda: count(stack, "SELECT count(*) FROM reservations") == 0, interval=0.2)


@pytest.mark.parametrize("writer", [INFERENCE_WORKER, SERVICE_WORKER, API])
def test_a_process_that_cannot_write_its_log_does_all_of_its_work(
    stack: Stack, client: Client, writer: str
) -> None:
    log = stack.directory / "logs" / f"{writer}.log"
    kept = log.rename(log.with_suffix(".kept"))
    log.symlink_to("/dev/full")
    try:
        pid = restarted(stack, writer)
        sizes = [30_000, *[3000] * 12, 50_000]
        jobs = [client.submit(text_of(size, start=size), task="summarize", max_tokens=60) for size in sizes]
        assert {client.finished(job["id"], timeout=120)["state"] for job in jobs} == {"completed"}
        assert stack.pids[writer] == pid, "no need to restart either"
        ready = client.http.get("/health/ready")
        assert ready.status_code == 200, ready.text
    finally:
        log.unlink()
        kept.rename(log)
        restarted(stack, writer)


def restarted(stack: Stack, name: str) -> int:
    """The id of the process that takes the place of this one, which is killed."""
    before = stack.pids[name]
    stack.send(name, signal.SIGKILL)
    pid = eventually(lambda: stack.pids[name] != before and stack.answers(name) and stack.pids[name])
    assert pid
    return pid


def test_jobs_move_while_redis_is_down(stack: Stack, client: Client) -> None:
    stack.hold(REDIS)
    try:
        small = client.submit("Summarize me. I am short.", task="summarize", max_tokens=32)
        large = client.submit(text_of(40_000), task="summarize", max_tokens=32)
        assert client.finished(small["id"])["state"] == "completed"
        assert client.finished(large["id"])["state"] == "completed"
    finally:
        stack.resume(REDIS)


def test_claims_pause_and_no_attempt_is_spent_while_triton_is_down(stack: Stack, client: Client) -> None:
    stack.hold(TRITON)
    try:
        job = client.submit("A short text to summarize.", task="summarize", max_tokens=32)
        eventually(
            lambda: count(stack, "SELECT count(*) FROM engines WHERE paused_reason IS NOT NULL") == 1,
        )
        assert client.job(job["id"])["state"] == "queued"
    finally:
        stack.resume(TRITON)
    ended = client.finished(job["id"])
    assert (ended["state"], ended["attempt"]) == ("completed", 0)


def test_a_warm_shutdown_gives_the_jobs_back(stack: Stack, client: Client) -> None:
    job = client.submit(text_of(40_000), task="summarize", max_tokens=2048)
    client.streaming(job["id"])
    stack.send(INFERENCE_WORKER, signal.SIGTERM)
    eventually(lambda: client.job(job["id"])["state"] == "queued")
    ended = client.finished(job["id"], timeout=90)
    assert (ended["state"], ended["attempt"]) == ("completed", 0)


def test_a_drained_engine_stays_drained_when_its_worker_is_killed(stack: Stack, client: Client) -> None:
    running = client.submit(text_of(3000), task="summarize", max_tokens=4000)["id"]
    client.streaming(running)
    (engine,) = client.http.get("/v1/engines").json()["data"]
    address = f"/v1/engines/{engine['id']}"
    assert client.http.post(f"{address}/drain", json={"reason": "new driver"}).json()["state"] == "draining"
    try:
        before = stack.pids[INFERENCE_WORKER]
        stack.send(INFERENCE_WORKER, signal.SIGKILL)
        eventually(lambda: client.http.get(address).json()["state"] == "drained", interval=0.2)
        assert stack.pids[INFERENCE_WORKER] != before
        eventually(lambda: (client.job(running)["queue"] or {}).get("reason") == "engine_paused")
        job = client.job(running)
        assert (job["state"], job["attempt"]) == ("queued", 0)
    finally:
        client.http.post(f"{address}/resume")
    assert client.finished(running)["state"] == "completed"
