"""Why a job waits, read from the database."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import event, select, text, update
from sqlalchemy.orm import Session

import ending
from jobs import tenants
from jobs.database import database_now
from jobs.engines import registry, reservations
from jobs.engines.capacity import Capacity
from jobs.forecast import backlog, snapshot
from jobs.forecast.engine_speed import Speed, reading_work
from jobs.forecast.queue_position import QueueForecast, forecast_queue, is_far_back, position_of
from jobs.ids import uuid7
from jobs.models import Engine, Job, Reservation
from jobs.scheduling import halts
from jobs.scheduling.halts import Operator
from jobs.scheduling.sizing import ClaimPolicy
from jobs.states import FinishReason, JobState, Lane, WaitReason
from jobs.states.halt import HaltKind
from jobs.views import QueuePosition
from support import ENGINE, MODEL, POLICY, claim_one, job_in, output_of, register_engine, spec, submit_one

WHOLE = ClaimPolicy(lease=POLICY.lease, max_rescues=POLICY.max_rescues, prediction=None)
SPEED = Speed(step_s=0.05, read_s=0.0002)
SLOTS = 4


def snapshot_of(session: Session, policy: ClaimPolicy = WHOLE) -> QueueForecast:
    session.flush()
    return forecast_queue(snapshot.take_snapshot(session, MODEL, policy, unmeasured=SPEED), policy)


def place_of(session: Session, job: Job) -> QueuePosition:
    return place_in(snapshot_of(session), session, job)


def place_in(snapshot: QueueForecast, session: Session, job: Job) -> QueuePosition:
    found = position_of(job, snapshot, backlog.count(session, MODEL))
    assert found is not None
    return found


def reason_of(session: Session, job: Job) -> WaitReason | None:
    return place_of(session, job).reason


def fill(session: Session, num_jobs: int = SLOTS, prompt_tokens: int = 100) -> None:
    """So many jobs run."""
    register_engine(session)
    for _ in range(num_jobs):
        submit_one(session, spec(prompt_tokens))
    for _ in range(num_jobs):
        claim_one(session, policy=WHOLE)


def starts_in(session: Session, job: Job) -> float:
    """Return the seconds from the look to the estimated start, however long the test took in between."""
    snapshot = snapshot_of(session)
    starts_at = place_in(snapshot, session, job).estimated_start_at
    assert starts_at is not None
    return (starts_at - snapshot.snapshot.now).total_seconds()


def asked(session: Session, num_jobs: int) -> list[Job]:
    """Questions about one document of 30,000 tokens."""
    jobs = [submit_one(session, spec(30_060)) for _ in range(num_jobs)]
    session.flush()
    session.execute(update(Job).where(Job.id.in_([job.id for job in jobs])).values(family=b"document"))
    session.expire_all()
    return jobs


def test_what_a_family_shares_is_read_once_where_the_engine_shares_it(session: Session) -> None:
    register_engine(session)
    *_, last = asked(session, 40)
    whole_s = starts_in(session, last)
    assert whole_s > 36 * SPEED.reading_s(30_060)
    session.execute(update(Engine).values(shares_prefix=True))
    # All that is known of these prompts is that half of each is common: what is left attends to that half.
    saved = reading_work(16_384) / reading_work(30_060)
    assert whole_s - starts_in(session, last) > 35 * saved * SPEED.reading_s(30_060)
    assert snapshot_of(session).snapshot.reading_share == pytest.approx(1 - 39 / 40 * saved)
    claim_one(session, policy=WHOLE)
    assert snapshot_of(session).snapshot.reading_share == pytest.approx(1 - saved), "it is being read"


def test_a_job_that_runs_or_has_ended_waits_for_nothing(session: Session) -> None:
    ended = job_in(session, JobState.COMPLETED)
    assert position_of(ended, snapshot_of(session), None) is None


def test_a_job_whose_tokens_are_counted_is_not_in_line(session: Session) -> None:
    job = job_in(session, JobState.PREPARING)
    assert position_of(job, None, None) == QueuePosition(reason=WaitReason.PREPARING)


def test_a_blocked_job_waits_for_others(session: Session) -> None:
    job = job_in(session, JobState.PREPARING)
    job.state = JobState.BLOCKED
    assert position_of(job, None, None) == QueuePosition(reason=WaitReason.DEPENDENCY)


def test_nothing_holds_back_the_next_job_on_a_free_engine(session: Session) -> None:
    register_engine(session)
    job = submit_one(session)
    place = place_of(session, job)
    assert (place.position, place.reason) == (1, None)
    assert starts_in(session, job) == pytest.approx(0)


def test_the_next_job_waits_for_a_slot_and_the_others_for_their_turn(session: Session) -> None:
    fill(session)
    jobs = [submit_one(session, spec(100, rank=-number // 2)) for number in range(3)]
    places = [place_of(session, job) for job in jobs]
    assert [each.position for each in places] == [1, 2, 3]
    assert [each.reason for each in places] == [WaitReason.SLOTS, WaitReason.BEHIND, WaitReason.BEHIND]
    starts = [each.estimated_start_at for each in places if each.estimated_start_at]
    assert starts == sorted(starts)
    assert len(starts) == 3


def test_a_long_job_waits_for_blocks(session: Session) -> None:
    fill(session, 1, 60_000)
    job = submit_one(session, spec(90_000))
    assert reason_of(session, job) == WaitReason.BLOCKS


def test_a_job_that_fits_but_would_postpone_another_meets_its_reservation(session: Session) -> None:
    fill(session, 1, 60_000)
    head = submit_one(session, spec(96_000, rank=1))
    late = submit_one(session, spec(30_000, max_tokens=20_000))
    assert reason_of(session, head) == WaitReason.BLOCKS
    assert reason_of(session, late) == WaitReason.RESERVATION
    submit_one(session, spec(100, max_tokens=8, rank=-1))
    small = submit_one(session, spec(101, max_tokens=8, rank=-1))
    assert reason_of(session, small) is None


def test_a_suspect_waits_for_an_idle_engine(session: Session) -> None:
    fill(session, 1)
    job = submit_one(session)
    job.num_rescues = WHOLE.max_rescues
    assert reason_of(session, job) == WaitReason.ALONE


def test_after_a_failed_attempt_the_time_of_the_next_is_reported(session: Session) -> None:
    register_engine(session)
    job = submit_one(session)
    job.run_after = database_now(session) + timedelta(seconds=40)
    place = place_of(session, job)
    assert place == QueuePosition(None, WaitReason.RETRY_BACKOFF, job.run_after)


def test_without_an_engine_nothing_can_be_said(session: Session) -> None:
    job = submit_one(session)
    assert place_of(session, job) == QueuePosition(reason=WaitReason.ENGINE_DOWN)


@pytest.mark.parametrize("how", ["paused", "silent"])
def test_an_engine_that_is_paused_or_silent_is_down(session: Session, how: str) -> None:
    register_engine(session)
    job = submit_one(session)
    if how == "paused":
        registry.pause(session, ENGINE, "the engine is not ready")
    else:
        session.execute(update(Engine).values(seen_at=database_now(session) - timedelta(minutes=1)))
    session.expire_all()
    assert place_of(session, job) == QueuePosition(reason=WaitReason.ENGINE_DOWN)


def test_a_job_for_a_larger_engine_waits_for_it_or_for_ever(session: Session) -> None:
    register_engine(session, "large")
    job = submit_one(session, spec(50_000))
    registry.pause(session, "large", "down")
    small = Capacity(
        max_batch_size=4, max_blocks=100, tokens_per_block=64, max_input_len=6000, max_seq_len=6400
    )
    register_engine(session, "small", small)
    session.expire_all()
    assert reason_of(session, job) == WaitReason.ENGINE_DOWN
    session.execute(text("DELETE FROM engines WHERE name = 'large'"))
    session.expire_all()
    assert place_of(session, job) == QueuePosition(reason=WaitReason.NO_ENGINE_FITS)


def test_a_job_whose_engines_an_operator_paused_says_who_and_why(session: Session) -> None:
    register_engine(session)
    job = submit_one(session)
    halts.halt_engine(session, ENGINE, HaltKind.PAUSE, reason="new driver", by=Operator("lb_0", "ops"))
    detail = f"engine {ENGINE} paused by ops: new driver"
    assert place_of(session, job) == QueuePosition(reason=WaitReason.ENGINE_PAUSED, detail=detail)
    register_engine(session, "engine-b")
    assert reason_of(session, job) is None
    registry.pause(session, "engine-b", "down")
    registry.pause(session, ENGINE, "down")
    session.expire_all()
    assert place_of(session, job) == QueuePosition(reason=WaitReason.ENGINE_DOWN)


def test_a_job_of_a_halted_queue_says_so_and_counts_for_no_other(session: Session) -> None:
    fill(session)
    tenant = tenants.create(session, f"t-{uuid7().hex}")
    theirs = [submit_one(session, tenant_id=tenant.id) for _ in range(3)]
    job = submit_one(session, spec(100, rank=-1))
    halts.halt_queue(session, tenant.id, HaltKind.PAUSE, reason="unpaid", by=Operator("lb_0", ""))
    for each in theirs:
        assert place_of(session, each) == QueuePosition(
            reason=WaitReason.QUEUE_PAUSED, detail="queue paused by lb_0: unpaid"
        )
        assert not is_far_back(snapshot_of(session), each)
    place = place_of(session, job)
    assert (place.position, place.reason) == (1, WaitReason.SLOTS)
    halts.resume_queue(session, tenant.id)
    session.expire_all()
    assert {reason_of(session, each) for each in theirs} <= {WaitReason.SLOTS, WaitReason.BEHIND}


def test_the_interactive_lane_is_before_the_batch_lane(session: Session) -> None:
    fill(session)
    batch, asked = submit_one(session), submit_one(session, spec(100, lane=Lane.INTERACTIVE))
    assert [place_of(session, each).position for each in (batch, asked)] == [2, 1]


def test_two_engines_take_twice_as_many(session: Session) -> None:
    fill(session)
    register_engine(session, "engine-b")
    jobs = [submit_one(session) for _ in range(SLOTS + 1)]
    places = sorted((place_of(session, job) for job in jobs), key=lambda each: each.position or 0)
    assert [each.reason for each in places] == [None] * SLOTS + [WaitReason.SLOTS]


def test_a_job_younger_than_the_snapshot_has_a_place_too(session: Session) -> None:
    register_engine(session)
    snapshot = snapshot_of(session)
    job = submit_one(session)
    assert is_far_back(snapshot, job)
    place = position_of(job, snapshot, backlog.count(session, MODEL))
    assert place is not None
    assert (place.position, place.reason) == (1, None)
    fill(session, 4)
    submit_one(session)
    busy = snapshot_of(session)
    young = submit_one(session)
    place = position_of(young, busy, backlog.count(session, MODEL))
    assert place is not None
    assert (place.position, place.reason) == (3, WaitReason.BEHIND)


def test_behind_the_horizon_places_are_counted_and_starts_extrapolated(session: Session) -> None:
    fill(session)
    jobs = [submit_one(session, spec(5000, max_tokens=100)) for _ in range(200)]
    snapshot, depth = snapshot_of(session), backlog.count(session, MODEL)
    places = [position_of(job, snapshot, depth) for job in jobs]
    far = [each for each in places if each and each.position and each.position > len(snapshot.positions)]
    assert [each.position for each in places if each] == list(range(1, 201))
    assert far
    assert {each.reason for each in far} == {WaitReason.BEHIND}
    starts = [each.estimated_start_at for each in places if each and each.estimated_start_at]
    assert starts == sorted(starts)
    near_s, far_s = ((starts[number] - snapshot.snapshot.now).total_seconds() for number in (60, 180))
    assert far_s == pytest.approx(3 * near_s, rel=0.2)


def test_estimates_follow_the_speed_that_was_measured(session: Session) -> None:
    fill(session)
    waits = submit_one(session)
    slow = starts_in(session, waits)
    earlier = database_now(session) - timedelta(hours=1)
    for _ in range(20):
        serve(session, earlier, reading=timedelta(seconds=0.001), writing=timedelta(seconds=0.06))
    fast = starts_in(session, waits)
    assert 0 < fast < slow / 10


def serve(session: Session, now: datetime, *, reading: timedelta, writing: timedelta) -> None:
    """A job of 100 prompt and 61 output tokens was served in this time."""
    session.flush()
    job = submit_one(session, spec(100, rank=1))
    session.execute(text("UPDATE engines SET max_batch_size = 5"))
    session.expire_all()
    lease = claim_one(session, policy=WHOLE).lease
    assert lease.job_id == job.id
    assert ending.complete(session, lease, output_of("done", 61), FinishReason.STOP)
    reservations.close(session, lease.lease_id)
    times = {"started_at": now, "first_token_at": now + reading, "finalized_at": now + reading + writing}
    session.execute(update(Job).where(Job.id == job.id).values(times))
    session.execute(text("UPDATE engines SET max_batch_size = 4"))
    session.expire_all()


def test_what_runs_is_expected_to_end_by_what_its_peers_generated(session: Session) -> None:
    register_engine(session)
    for _ in range(SLOTS):
        submit_one(session, spec(100, max_tokens=4000))
    for _ in range(SLOTS):
        claim_one(session, policy=WHOLE)
    waits = submit_one(session)
    before = starts_in(session, waits)
    session.execute(update(Reservation).values(created_at=database_now(session) - timedelta(seconds=50)))
    session.execute(
        update(Job)
        .where(Job.state == "running")
        .values(completion_tokens=3990, first_token_at=database_now(session) - timedelta(seconds=40))
    )
    session.expire_all()
    assert starts_in(session, waits) < before / 10


def test_looking_locks_and_writes_nothing(session: Session) -> None:
    fill(session)
    submit_one(session)
    session.commit()
    statements: list[str] = []
    connection = session.connection()
    event.listen(connection, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    session.execute(text("SET TRANSACTION READ ONLY"))
    snapshot_of(session)
    backlog.count(session, MODEL)
    assert statements
    assert not any("FOR UPDATE" in each for each in statements)
    session.rollback()


def test_looking_takes_as_many_statements_however_many_engines_and_tenants_there_are(
    session: Session,
) -> None:
    def look() -> int:
        connection = session.connection()
        statements: list[str] = []

        def note(*arguments: str) -> None:
            statements.append(arguments[2])

        event.listen(connection, "before_cursor_execute", note)
        # As in the product, outputs are predicted.
        found = snapshot_of(session, ClaimPolicy(lease=POLICY.lease, max_rescues=POLICY.max_rescues))
        event.remove(connection, "before_cursor_execute", note)
        assert len(found.snapshot.ranked) == len(found.snapshot.up) == num_tenants
        return len(statements)

    num_statements = []
    for num_tenants in (1, 4):
        while len(session.scalars(select(Engine)).all()) < num_tenants:
            capacity = Capacity(SLOTS, 2048, 64, 130_000, 131_072)
            name = f"engine-{uuid7()}"
            registry.register(session, name, MODEL, capacity, now=database_now(session))
            submit_one(session, tenant_id=tenants.create(session, name).id)
        num_statements.append(look())
    assert num_statements[0] == num_statements[1] <= 8


def test_what_an_engine_had_of_a_prompt_is_not_counted_as_read(session: Session) -> None:
    register_engine(session)
    job = submit_one(session, spec(30_000))
    lease = claim_one(session, policy=WHOLE).lease
    assert ending.complete(session, lease, output_of("x"), FinishReason.STOP)
    took = timedelta(seconds=10)
    session.execute(update(Job).values(first_token_at=Job.started_at + took, cached_tokens=25_000))
    ((_, state),) = snapshot_of(session).snapshot.up
    read = reading_work(30_000) - reading_work(25_000)
    assert state.speed.read_s == pytest.approx(took.total_seconds() / read)
    assert job.state == JobState.COMPLETED
