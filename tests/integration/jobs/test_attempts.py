"""Every run of a job leaves one row that says how it ended, whoever ended it."""

import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta

import httpx2
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from api_server import ApiProcess
from jobs import deletion, ids, lifecycle
from jobs.database import database_now
from jobs.engines import attempts, reservations
from jobs.finishing import JobEnd
from jobs.models import DEFAULT_TENANT, Attempt, Job, Reservation
from jobs.scheduling import tick
from jobs.starting import Claimant
from jobs.states import StopReason
from jobs.tenants import keys
from jobs.tenants.keys import Scope
from jobs.transitions import Lease
from support import (
    ENGINE,
    ERROR,
    POLICY,
    claim_one,
    new_tenant,
    output_of,
    register_engine,
    spec,
    submit_one,
)

SPAN = timedelta(seconds=2)
KNOWN = replace(POLICY, claimant=Claimant("host-1:17"))


def running(session: Session) -> Lease:
    register_engine(session)
    submit_one(session, spec(100))
    return claim_one(session, policy=KNOWN).lease


def again(session: Session, lease: Lease) -> Lease:
    """The job's next run, once the reservation of the last one is gone."""
    reservations.close(session, lease.lease_id)
    reservations.drained(session, [lease.lease_id])
    session.execute(update(Job).values(run_after=None))
    return claim_one(session, policy=KNOWN).lease


def finished(lease: Lease, *, num_tokens: int = 3, is_done: bool = True) -> JobEnd:
    output = replace(output_of("all of it", num_tokens), cached_tokens=64)
    return ending.completed(lease, output, since_first_token=timedelta(0), engine_is_done=is_done)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_tick_that_stores_an_answer_keeps_its_run(session: Session, *, is_done: bool) -> None:
    lease = running(session)
    held = session.get_one(Reservation, lease.lease_id)
    began, blocks = held.created_at, held.blocks
    tick.tick(session, ENGINE, None, ended=[finished(lease, is_done=is_done)])
    (run,) = attempts.of_job(session, lease.job_id)
    job = session.get_one(Job, lease.job_id, populate_existing=True)
    assert (run.lease_id, run.engine_name, run.worker) == (lease.lease_id, ENGINE, "host-1:17")
    assert (run.outcome, run.error_code) == ("completed", None)
    assert (run.prompt_tokens, run.cached_tokens, run.completion_tokens) == (100, 64, 3)
    assert (run.started_at, run.ended_at, run.blocks) == (began, job.finalized_at, blocks)
    assert run.first_token_at == job.first_token_at


def test_each_way_out_of_a_run_is_told_apart(session: Session) -> None:
    lease = running(session)
    ending.release(session, lease)
    lease = again(session, lease)
    ending.release(session, lease, error_code="engine_busy")
    lease = again(session, lease)
    ending.yield_slot(session, lease, output_of("a", 1))
    lease = again(session, lease)
    ending.release_preempted(session, lease, output_of("ab", 5))
    lease = again(session, lease)
    ending.recount(session, lease, prompt_tokens=101)
    lease = again(session, lease)
    ending.retry(session, lease, ERROR, max_attempts=3, backoff=SPAN)
    lease = again(session, lease)
    lifecycle.rescue(session, now=database_now(session) + timedelta(minutes=2), max_rescues=2)
    lease = again(session, lease)
    ending.release_after_engine_loss(session, lease, max_rescues=2)
    lease = again(session, lease)
    ending.finish_stopped(session, lease, StopReason.CANCEL, None)
    found = attempts.of_job(session, lease.job_id)
    assert [(run.outcome, run.error_code, run.completion_tokens) for run in found] == [
        ("released", None, 0),
        ("released", "engine_busy", 0),
        ("yielded", None, 1),
        ("preempted", None, 4),
        ("recounted", None, 0),
        ("retried", "engine_error", 0),
        ("lost", "worker_lost", 0),
        ("lost", "engine_lost", 0),
        ("cancelled", None, 0),
    ]
    assert all(run.ended_at and run.started_at <= run.ended_at for run in found)
    assert [run.started_at for run in found] == sorted(run.started_at for run in found)


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [(None, "failed"), (StopReason.CANCEL, "cancelled"), (StopReason.EXPIRE, "expired")],
)
def test_a_run_that_ends_its_job_says_how(session: Session, reason: StopReason | None, outcome: str) -> None:
    lease = running(session)
    if reason is None:
        ending.fail(session, lease, ERROR, output_of("some", 2))
    else:
        ending.finish_stopped(session, lease, reason, output_of("some", 2))
    (run,) = attempts.of_job(session, lease.job_id)
    error_code = "engine_error" if reason is None else None
    assert (run.outcome, run.error_code, run.completion_tokens) == (outcome, error_code, 2)


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_the_run_of_a_lost_worker_is_lost_even_if_its_job_ends_there(
    session: Session, *, is_cancelled: bool
) -> None:
    lease = running(session)
    if is_cancelled:
        lifecycle.cancel(session, lease.job_id, tenant_id=DEFAULT_TENANT)
    lifecycle.rescue(session, now=database_now(session) + timedelta(minutes=2), max_rescues=0)
    job = session.get_one(Job, lease.job_id, populate_existing=True)
    assert job.state == ("cancelled" if is_cancelled else "failed")
    (run,) = attempts.of_job(session, lease.job_id)
    assert (run.outcome, run.error_code) == ("lost", "worker_lost")


def test_a_run_that_goes_on_counts_only_its_own_tokens(session: Session) -> None:
    lease = running(session)
    ending.release(session, lease, output_of("one two", 2))
    lease = again(session, lease)
    ending.checkpoint(session, lease, output_of("one two …", 5))
    ending.report_progress(session, lease, completion_tokens=9)
    lifecycle.rescue(session, now=database_now(session) + timedelta(minutes=2), max_rescues=2)
    lease = again(session, lease)
    tick.tick(session, ENGINE, None, ended=[finished(lease, num_tokens=12)])
    generated = [run.completion_tokens for run in attempts.of_job(session, lease.job_id)]
    assert generated == [2, 7, 7], "what was lost since the checkpoint is generated again"


def test_a_stale_worker_leaves_no_row(session: Session) -> None:
    lease = running(session)
    lifecycle.rescue(session, now=database_now(session) + timedelta(minutes=2), max_rescues=2)
    again(session, lease)
    ending.fail(session, lease, ERROR)
    ending.release(session, lease)
    tick.tick(session, ENGINE, None, ended=[finished(lease)])
    assert [run.outcome for run in attempts.of_job(session, lease.job_id)] == ["lost"]


def test_a_run_whose_reservation_was_closed_before_its_end_was_stored_is_kept(
    sessions: sessionmaker[Session],
) -> None:
    with sessions.begin() as session:
        lease = running(session)
        began = session.get_one(Reservation, lease.lease_id).created_at
    with sessions() as other, sessions.begin() as session:
        other.execute(select(Job).with_for_update())
        tick.tick(session, ENGINE, None, ended=[finished(lease)])
        assert attempts.of_job(session, lease.job_id) == []
    with sessions.begin() as session:
        assert session.get(Reservation, lease.lease_id) is None
        tick.tick(session, ENGINE, None, ended=[finished(lease)])
        (run,) = attempts.of_job(session, lease.job_id)
        assert run.outcome == "completed"
        assert abs(run.started_at - began) < timedelta(seconds=1), "by the id of its lease"
        assert (run.worker, run.blocks, run.completion_tokens) == (None, None, None)


def test_attempts_go_with_their_job(session: Session) -> None:
    lease = running(session)
    ending.fail(session, lease, ERROR)
    assert deletion.prune_jobs(session, before=database_now(session) + timedelta(days=1)) == 1
    assert session.scalars(select(Attempt)).all() == []


def test_of_a_job_that_its_engine_turns_away_for_days_the_newest_runs_are_kept(session: Session) -> None:
    lease = running(session)
    given = [lease]
    for _ in range(attempts.MOST_KEPT + 2):
        ending.release(session, given[-1], error_code="engine_busy")
        given.append(again(session, given[-1]))
    kept = [run.lease_id for run in attempts.of_job(session, lease.job_id)]
    assert kept == [each.lease_id for each in given[2:-1]]
    assert len(kept) == attempts.MOST_KEPT
    tick.tick(session, ENGINE, None, ended=[finished(given[-1])])
    kept = [run.lease_id for run in attempts.of_job(session, lease.job_id)]
    assert kept == [each.lease_id for each in given[3:]]


def test_callers_list_the_runs_of_a_job_and_operators_see_the_worker(
    sessions: sessionmaker[Session], http: httpx2.Client, server: ApiProcess
) -> None:
    with sessions.begin() as session:
        lease = running(session)
        ending.retry(session, lease, ERROR, max_attempts=3, backoff=SPAN)
        current = again(session, lease)
        ending.report_progress(session, current, completion_tokens=7)
        reading, other = (
            keys.create(session, tenant_id=each, name="reads", scopes=[Scope.READ]).secret
            for each in (DEFAULT_TENANT, new_tenant(session))
        )
    address = f"/v1/jobs/{ids.job_id(lease.job_id)}/attempts"
    found = http.get(address).json()
    first, second = found["data"]
    assert (found["object"], found["has_more"], found["first_id"]) == ("list", False, first["id"])
    assert first["id"] == f"att_{lease.lease_id.hex}"
    assert (first["outcome"], first["error_code"], first["engine"]) == ("retried", "engine_error", ENGINE)
    assert first["started_at"] < first["ended_at"] < second["started_at"]
    assert second["id"] == f"att_{current.lease_id.hex}"
    running_now = ("outcome", "ended_at", "completion_tokens", "worker")
    assert [second[name] for name in running_now] == [None, None, 7, "host-1:17"]
    answers = {
        secret: httpx2.get(server.url + address, headers={"Authorization": f"Bearer {secret}"})
        for secret in (reading, other)
    }
    assert {run["worker"] for run in answers[reading].json()["data"]} == {None}
    assert answers[other].status_code == 404
    told = {"LONGBATCH_API_URL": server.url, "LONGBATCH_API_KEY": reading}
    command = [sys.executable, "-P", "-m", "longbatch.cli", "attempts", ids.job_id(lease.job_id)]
    shown = subprocess.run(command, env=os.environ | told, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["engine", ENGINE, ENGINE]
    assert "retried [engine_error]" in shown.stdout
    assert "running" in shown.stdout.splitlines()[2]
