"""Engines and queues that an operator halts: no job starts, none that runs is lost, and nobody else waits."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import event, select, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from claiming import claims
from jobs import lifecycle, tenants
from jobs.database import database_now, transaction
from jobs.engines import registry, reservations
from jobs.errors import NotFoundError
from jobs.ids import uuid7
from jobs.models import Engine, Job, Tenant, TenantAccount
from jobs.scheduling import engine_load, growth, halts
from jobs.scheduling.growth import Granted
from jobs.scheduling.halts import Operator
from jobs.scheduling.prefixes import engine_prefixes
from jobs.scheduling.prefixes.prefix_replay import PrefixReplay
from jobs.states import FinishReason, JobState, Lane
from jobs.states.halt import HaltKind, HaltState, state_of
from support import (
    CAPACITY,
    ENGINE,
    MODEL,
    POLICY,
    claim_one,
    eventually,
    num_waiting_for_locks,
    output_of,
    register_engine,
    spec,
    submit_one,
)

BY = Operator("lb_0123456789abcdef", "ops")
BIG = 90_000
OTHER = "engine-b"


def halt_engine(session: Session, name: str = ENGINE, kind: HaltKind = HaltKind.PAUSE) -> None:
    halts.halt_engine(session, name, kind, reason="new driver", by=BY)


def halt_queue(session: Session, tenant_id: UUID) -> None:
    halts.halt_queue(session, tenant_id, HaltKind.PAUSE, reason="unpaid", by=BY)


def engine_row(session: Session) -> Engine:
    return session.get_one(Engine, ENGINE, populate_existing=True)


@pytest.fixture
def theirs(session: Session) -> UUID:
    """Another tenant."""
    register_engine(session)
    return tenants.create(session, f"t-{uuid7().hex}").id


def test_a_halted_engine_starts_nothing_whatever_its_worker_does(session: Session) -> None:
    register_engine(session)
    job = submit_one(session)
    halt_engine(session)
    register_engine(session)  # its worker restarts
    registry.mark_ready(session, ENGINE, now=database_now(session))
    assert not claims.claim_all(session, ENGINE, POLICY).claims
    register_engine(session, OTHER)
    halts.resume_engine(session, ENGINE)
    assert claim_one(session).lease.job_id == job.id


def test_what_runs_on_a_halted_engine_ends_and_then_it_is_drained(session: Session) -> None:
    register_engine(session)
    submit_one(session)
    running = claim_one(session)
    halt_engine(session, kind=HaltKind.DRAIN)
    assert num_booked(session) == 1
    assert ending.complete(session, running.lease, output_of("x"), FinishReason.STOP)
    ending.drain(session, running.lease.lease_id)
    assert num_booked(session) == 1, "the engine may still run it"
    reservations.drained(session, [running.lease.lease_id])
    assert num_booked(session) == 0
    assert state_of(HaltKind.DRAIN, num_running=0) is HaltState.DRAINED


def num_booked(session: Session) -> int:
    return len(engine_load.read(session, engine_row(session)).reserved)


@pytest.mark.parametrize(
    ("kind", "num_running", "state"),
    [
        (None, 1, HaltState.RUNNING),
        (HaltKind.PAUSE, 0, HaltState.PAUSED),
        (HaltKind.PAUSE, 1, HaltState.PAUSED),
        (HaltKind.DRAIN, 1, HaltState.DRAINING),
        (HaltKind.DRAIN, 0, HaltState.DRAINED),
    ],
)
def test_a_drain_alone_tells_when_nothing_runs(
    kind: HaltKind | None, num_running: int, state: HaltState
) -> None:
    assert state_of(kind, num_running=num_running) is state


def test_a_second_order_replaces_the_reason_and_not_the_time(session: Session) -> None:
    register_engine(session)
    halt_engine(session)
    first = halts.halt_of(engine_row(session))
    halts.halt_engine(session, ENGINE, HaltKind.DRAIN, reason="new disk", by=Operator())
    second = halts.halt_of(engine_row(session))
    assert first is not None
    assert second == replace(first, kind=HaltKind.DRAIN, reason="new disk", by=Operator())
    for _ in range(2):
        halts.resume_engine(session, ENGINE)
        assert halts.halt_of(engine_row(session)) is None


def test_what_does_not_exist_cannot_be_halted(session: Session) -> None:
    for verb in (halt_engine, halts.resume_engine):
        with pytest.raises(NotFoundError):
            verb(session, "nowhere")
    with pytest.raises(NotFoundError):
        halt_queue(session, uuid7())


def test_a_halt_waits_for_the_claim_under_way_and_holds_from_then_on(
    sessions: sessionmaker[Session], background: Callable[..., Future[object]]
) -> None:
    with transaction(sessions) as session:
        register_engine(session)
        jobs = [submit_one(session).id for _ in range(2)]

    def halt() -> None:
        with transaction(sessions) as session:
            halt_engine(session)

    with transaction(sessions) as session:
        first = claims.claim(session, ENGINE, POLICY)
        halted = background(halt)
        eventually(lambda: num_waiting_for_locks(sessions) == 1)
    halted.result()
    with transaction(sessions) as session:
        assert claims.claim(session, ENGINE, POLICY) is None
        states = dict(session.execute(select(Job.id, Job.state)).all())
        assert first is not None
        assert states == {jobs[0]: JobState.RUNNING, jobs[1]: JobState.QUEUED}


def test_a_job_rescued_from_a_halted_engine_runs_elsewhere(session: Session) -> None:
    register_engine(session)
    job = submit_one(session)
    claimed = claim_one(session)
    halt_engine(session)
    now = database_now(session)
    session.execute(update(Job).values(lease_expires_at=now - timedelta(seconds=1)))
    assert lifecycle.rescue(session, now=now, max_rescues=2, limit=10)
    session.refresh(job)
    assert (job.state, job.id) == (JobState.QUEUED, claimed.lease.job_id)
    assert claims.claim(session, ENGINE, POLICY) is None
    register_engine(session, OTHER)
    assert claim_one(session, OTHER).lease.job_id == job.id


def test_a_job_grows_past_one_that_cannot_start_where_it_runs(session: Session) -> None:
    register_engine(session, capacity=replace(CAPACITY, max_blocks=1600))
    submit_one(session, spec(60_000, max_tokens=100))
    claim_one(session)
    head = submit_one(session, spec(96_000, max_tokens=2048, rank=1))
    submit_one(session, spec(100, max_tokens=30_000))
    small = claim_one(session)
    halt_engine(session)
    whole = replace(POLICY, prediction=None)
    asked = [growth.Extension(small.lease, small.output_tokens)]
    assert growth.extend(session, ENGINE, asked, policy=whole) == [Granted(30_000)], head.id


def test_a_document_is_not_left_to_an_engine_that_starts_nothing(session: Session) -> None:
    register_engine(session)
    register_engine(session, OTHER)
    job = submit_one(session)
    session.execute(update(Job).values(family=b"f" * 16))
    claim_one(session, OTHER, replace(POLICY, replay=PrefixReplay()))
    kept = {(each.tenant_id, each.digest) for each in engine_prefixes.elsewhere(session, ENGINE, MODEL)}
    assert kept == {(job.tenant_id, b"f" * 16)}
    halt_engine(session, OTHER)
    assert not engine_prefixes.elsewhere(session, ENGINE, MODEL)


def test_a_halted_queue_waits_and_reserves_nothing(session: Session, theirs: UUID) -> None:
    submit_one(session, spec(BIG, max_tokens=1024))
    claim_one(session)
    head = submit_one(session, spec(95_000, max_tokens=1024, rank=1), tenant_id=theirs)
    # It fits, but would still run when the head could start.
    slow = submit_one(session, spec(35_500, max_tokens=2048))
    halt_queue(session, theirs)
    assert claim_one(session).lease.job_id == slow.id
    assert claims.claim(session, ENGINE, POLICY) is None
    halts.resume_queue(session, theirs)
    left = claims.claim_all(session, ENGINE, POLICY).left
    assert left is not None
    assert [each.id for each in left] == [head.id]


def test_no_job_starts_whose_queue_was_halted_after_it_was_read(session: Session, theirs: UUID) -> None:
    halted = [submit_one(session, tenant_id=theirs).id for _ in range(3)]
    mine = submit_one(session)
    start = claims.choose(session, ENGINE, POLICY)
    halt_queue(session, theirs)
    assert [each.lease.job_id for each in start()] == [mine.id]
    halts.resume_queue(session, theirs)
    found = claims.claim_all(session, ENGINE, POLICY)
    assert {each.lease.job_id for each in found.claims} == {*halted}


def test_an_interactive_job_of_a_halted_queue_disturbs_nobody(session: Session, theirs: UUID) -> None:
    for _ in range(5):
        submit_one(session)
    for _ in range(4):
        claim_one(session)
    submit_one(session, spec(lane=Lane.INTERACTIVE), tenant_id=theirs)
    assert engine_load.read(session, engine_row(session)).interactive_waits
    halt_queue(session, theirs)
    assert not engine_load.read(session, engine_row(session)).interactive_waits
    assert not claims.claim_all(session, ENGINE, POLICY).asked_for_room


def test_a_halted_queue_earns_no_credit(session: Session, theirs: UUID) -> None:
    submit_one(session, tenant_id=theirs)
    for _ in range(9):
        submit_one(session, spec(1000))
    halt_queue(session, theirs)
    for _ in range(3):
        assert claim_one(session).job.tenant_id != theirs
    assert session.get(TenantAccount, (theirs, MODEL), populate_existing=True) is None
    halts.resume_queue(session, theirs)
    claims.claim_all(session, ENGINE, POLICY, limit=0)
    account = session.get_one(TenantAccount, (theirs, MODEL), populate_existing=True)
    assert account.is_active
    assert account.served > 0, "it was lifted to those that were served meanwhile"


def test_a_tenant_that_is_halted_while_its_jobs_run_becomes_idle_with_them(
    session: Session, theirs: UUID
) -> None:
    for _ in range(2):
        submit_one(session, tenant_id=theirs)
    running = claim_one(session)
    halt_queue(session, theirs)
    claims.claim_all(session, ENGINE, POLICY)
    assert halts.count_running(session, [theirs]) == {theirs: 1}
    assert is_active(session, theirs)
    ending.complete(session, running.lease, output_of("x"), FinishReason.STOP)
    reservations.close(session, running.lease.lease_id)
    claims.claim_all(session, ENGINE, POLICY)
    assert not is_active(session, theirs)
    assert not halts.count_running(session, [theirs])


def is_active(session: Session, tenant_id: UUID) -> bool:
    return session.get_one(TenantAccount, (tenant_id, MODEL), populate_existing=True).is_active


def test_halted_queues_cost_a_claim_no_statement(session: Session, theirs: UUID) -> None:
    mine = submit_one(session)
    claim_one(session)
    assert mine.tenant_id != theirs

    def statements() -> list[str]:
        found: list[str] = []

        def note(*arguments: object) -> None:
            found.append(str(arguments[2]))

        session.flush()
        event.listen(session.connection(), "before_cursor_execute", note)
        try:
            claims.claim_all(session, ENGINE, POLICY)
        finally:
            event.remove(session.connection(), "before_cursor_execute", note)
        return found

    alone = statements()
    for _ in range(3):
        submit_one(session, tenant_id=theirs)
    halt_queue(session, theirs)
    assert statements() == alone
    assert session.scalar(select(Tenant.halt).where(Tenant.id == theirs)) == "pause"
