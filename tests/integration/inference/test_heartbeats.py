"""A worker reports itself, and hands back what dead processes of its host held, and nothing of live ones."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from cli.stack.servers.valkey import EmbeddedValkey
from jobs.database import transaction
from jobs.engines import workers
from jobs.engines.workers import WorkerReport
from jobs.ids import uuid7
from jobs.models import Job, Worker
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DatabaseSettings, EngineSettings
from jobs.starting import Claimant
from stand_in_engine import standing_in
from support import POLICY, claim_one, eventually, register_engine, submit_one
from worker import process_identity
from worker.heartbeat import Heartbeat
from worker.loop import Loop
from worker_suite import settings_of_worker
from worker_support import Queue, WorkerProcess, running_worker


def test_a_killed_worker_s_job_goes_on_at_once_when_the_next_one_starts_on_its_host(
    queue: Queue, database_settings: DatabaseSettings, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    with standing_in("vllm", pace=0.01, waits_at=60) as server:
        engine = EngineSettings.model_validate({"url": server.url, "max_batch_size": 4})
        settings = settings_of_worker(database_settings, valkey.url, engine)
        # No lease runs out while this test waits.
        slow = settings.jobs.model_copy(update={"lease_seconds": 3600, "drain_seconds": 3600})
        settings = settings.model_copy(update={"jobs": slow})
        job_id = queue.submit("Write about rivers.", max_tokens=80)
        first = WorkerProcess("inference", settings, tmp_path / "first.log")
        try:
            queue.when(job_id, lambda job: job.completion_tokens > 10)
        finally:
            first.end()
        with running_worker(settings, queue.tokenizer):
            ended = queue.ended(job_id)
            assert (ended.state, ended.num_rescues, ended.attempt) == ("completed", 1, 0)
            eventually(lambda: not queue.reservations())
            with queue.sessions() as session:
                (name,) = session.scalars(select(Worker.name))
            assert name.endswith(f":{os.getpid()}")


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    found = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield found
    found.kill()
    found.wait()


def identity_of(process: "subprocess.Popen[bytes]") -> str:
    stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return f"{process_identity.this_host()}/{process.pid}/{stat[19]}"


def test_a_process_has_ended_once_it_is_gone_or_a_zombie(process: "subprocess.Popen[bytes]") -> None:
    mine, child = process_identity.this_process(), identity_of(process)
    assert mine is not None
    assert not process_identity.has_ended(mine)
    assert not process_identity.has_ended(child)
    process.kill()
    eventually(lambda: process_identity.has_ended(child))  # nobody has waited for it yet
    process.wait()
    assert process_identity.has_ended(child)


def test_a_pid_says_nothing_about_another_boot_or_namespace_and_may_be_taken_again(
    process: "subprocess.Popen[bytes]",
) -> None:
    child = identity_of(process)
    host, pid, started = child.rsplit("/", 2)
    assert process_identity.has_ended(f"{host}/{pid}/{int(started) - 1}"), "its pid is another process's now"
    process.kill()
    process.wait()
    boot, namespace = host.split("/")
    assert not process_identity.has_ended(f"another-boot/{namespace}/{pid}/{started}")
    assert not process_identity.has_ended(f"{boot}/pid:[1]/{pid}/{started}")


def test_only_leases_of_dead_processes_are_handed_back(
    sessions: sessionmaker[Session], process: "subprocess.Popen[bytes]"
) -> None:
    mine = Heartbeat("service", sessions, max_rescues=2)
    rescued: list[bool] = []
    mine.on_rescued = lambda: rescued.append(True)
    dead = WorkerReport(uuid7(), "inference", "host:1", identity_of(process))
    living = WorkerReport(uuid7(), "inference", "host:2", process_identity.this_process())
    elsewhere = WorkerReport(uuid7(), "inference", "host:3", f"another-{identity_of(process)}")
    process.kill()
    process.wait()
    leases = {}
    with transaction(sessions) as session:
        register_engine(session)
        for each in (dead, living, elsewhere):
            workers.report(session, each)
            submit_one(session)
            policy = replace(POLICY, claimant=Claimant(each.name, each.id))
            leases[each.name] = claim_one(session, policy=policy).lease.job_id
    mine.run_once()
    with sessions() as session:
        states = {name: session.get_one(Job, job_id).state for name, job_id in leases.items()}
        names = {*session.scalars(select(Worker.name))}
    assert states == {"host:1": "queued", "host:2": "running", "host:3": "running"}
    assert names == {mine.claimant.name, "host:2", "host:3"}
    assert rescued == [True]


def test_a_worker_reports_its_late_loops_and_leaves_when_it_stops(sessions: sessionmaker[Session]) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        go_on.wait(60)

    loop = Loop("summaries", hang, interval=1, longest_step=0.01)
    found = Heartbeat("service", sessions, max_rescues=2)
    found.watch([loop])
    loop.start()
    try:
        assert entered.wait(60)
        eventually(lambda: loop.is_late)
        found.run_once()
        with sessions() as session:
            (row,) = workers.alive(session)
            assert (row.role, row.late_loops) == ("service", ["summaries"])
    finally:
        go_on.set()
        loop.stop()
    found.leave()
    with sessions() as session:
        assert workers.alive(session) == []


def test_a_worker_whose_dispatcher_hangs_renews_no_lease_and_says_that_it_is_late(
    queue: Queue, database_settings: DatabaseSettings, valkey: EmbeddedValkey, tokenizer: Tokenizer
) -> None:
    with standing_in("vllm", pace=0.05) as server:
        engine = EngineSettings.model_validate({"url": server.url, "max_batch_size": 4})
        settings = settings_of_worker(database_settings, valkey.url, engine)
        with running_worker(settings, tokenizer) as worker:
            job_id = queue.submit("Write about rivers.", max_tokens=600)
            queue.streaming(job_id)
            with worker.dispatcher._ticking:  # a round that never ends
                worker.dispatcher.loop.wake()
                worker.dispatcher.loop._longest_step = 0.01
                eventually(lambda: worker.dispatcher.loop.is_late)
                leased = queue.job(job_id).lease_expires_at
                worker.heartbeat.run_once()
                with queue.sessions() as session:
                    (row,) = workers.alive(session)
                assert row.late_loops == ["dispatcher"]
                eventually(lambda: server.left)  # it gave the job up before its lease ran out
                assert queue.job(job_id).lease_expires_at == leased
            worker.dispatcher.loop._longest_step = 60
