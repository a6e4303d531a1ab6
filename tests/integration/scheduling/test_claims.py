import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from claiming import claims
from jobs import leases
from jobs.database import database_now, transaction
from jobs.engines import registry, reservations
from jobs.engines.capacity import Capacity
from jobs.ids import uuid7
from jobs.models import Job, Reservation
from jobs.states import FinishReason, JobState
from support import CAPACITY, ENGINE, POLICY, claim_one, job_in, output_of, register_engine, spec, submit_one

BIG = 90_000


def test_a_claim_reserves_blocks_for_prompt_and_output(session: Session) -> None:
    register_engine(session)
    job = submit_one(session, spec(1000, max_tokens=25))
    claimed = claim_one(session)
    assert claimed.lease.job_id == job.id
    assert claimed.blocks == 17  # 1025 tokens in blocks of 64
    assert session.scalars(select(Reservation.blocks)).one() == 17
    session.refresh(job)
    assert job.state == JobState.RUNNING
    assert job.started_at is not None


def test_two_prompts_of_90k_never_run_together(session: Session) -> None:
    register_engine(session)
    first = submit_one(session, spec(BIG, max_tokens=1024))
    submit_one(session, spec(BIG, max_tokens=1024))
    small = submit_one(session, spec(500))
    assert claim_one(session).lease.job_id == first.id
    assert claim_one(session).lease.job_id == small.id
    assert claims.claim(session, ENGINE, POLICY) is None


def test_a_later_job_starts_ahead_of_a_waiting_head_only_if_it_does_not_postpone_it(session: Session) -> None:
    register_engine(session)
    submit_one(session, spec(BIG, max_tokens=1024))
    running = claim_one(session)
    head = submit_one(session, spec(95_000, max_tokens=1024, rank=1))
    quick = submit_one(session, spec(500, max_tokens=64))
    # It fits, but would still run when the first one has ended and the head could start.
    slow = submit_one(session, spec(35_500, max_tokens=2048))
    assert claim_one(session).lease.job_id == quick.id
    assert claims.claim(session, ENGINE, POLICY) is None
    ending.complete(session, running.lease, output_of("x"), FinishReason.STOP)
    reservations.close(session, running.lease.lease_id)
    assert claim_one(session).lease.job_id == head.id
    session.refresh(slow)
    assert slow.state == JobState.QUEUED


def test_priority_orders_the_queue_and_age_breaks_ties(session: Session) -> None:
    register_engine(session)
    low, normal, high = (submit_one(session, spec(10, rank=rank)) for rank in (-1, 0, 1))
    second = submit_one(session, spec(10))
    assert [claim_one(session).lease.job_id for _ in range(4)] == [high.id, normal.id, second.id, low.id]


def test_a_small_job_behind_a_long_row_of_big_ones_is_seen(session: Session) -> None:
    register_engine(session)
    for _ in range(POLICY.packing.window + 5):
        submit_one(session, spec(BIG))
    small = submit_one(session, spec(100))
    claim_one(session)
    assert claim_one(session).lease.job_id == small.id


def test_draining_reservations_count_until_they_are_gone(session: Session) -> None:
    register_engine(session)
    submit_one(session, spec(BIG))
    submit_one(session, spec(BIG))
    first = claim_one(session)
    ending.fail(session, first.lease, {"code": "x", "message": "y"})
    ending.drain(session, first.lease.lease_id)
    assert claims.claim(session, ENGINE, POLICY) is None
    assert reservations.drained(session, [first.lease.lease_id]) == 1
    claim_one(session)


def test_a_paused_engine_claims_nothing(session: Session) -> None:
    register_engine(session)
    submit_one(session)
    registry.pause(session, ENGINE, "server not ready")
    assert claims.claim(session, ENGINE, POLICY) is None
    register_engine(session)
    claim_one(session)


def test_a_gauge_can_only_shrink_the_budget(session: Session) -> None:
    register_engine(session)
    submit_one(session, spec(1000))
    registry.mark_ready(session, ENGINE, now=database_now(session), spare_blocks=3)
    assert claims.claim(session, ENGINE, POLICY) is None
    registry.mark_ready(session, ENGINE, now=database_now(session), spare_blocks=None)
    claim_one(session)


def test_a_job_rescued_too_often_runs_with_nothing_beside_it(session: Session) -> None:
    register_engine(session)
    suspect = submit_one(session, spec(100))
    session.execute(update(Job).where(Job.id == suspect.id).values(num_rescues=POLICY.max_rescues))
    submit_one(session, spec(100))
    assert claim_one(session).lease.job_id == suspect.id
    assert claims.claim(session, ENGINE, POLICY) is None


def test_another_model_s_jobs_are_left_alone(session: Session) -> None:
    registry.register(session, "other", "other-model", CAPACITY, now=database_now(session))
    submit_one(session)
    assert claims.claim(session, "other", POLICY) is None


def test_windows_and_states_of_each_sequence_are_reserved_with_its_text(session: Session) -> None:
    windowed = Capacity(
        max_batch_size=4,
        max_blocks=25,
        tokens_per_block=64,
        max_input_len=2000,
        max_seq_len=2560,
        blocks_per_sequence=10,
    )
    register_engine(session, capacity=windowed)
    too_large = submit_one(session, spec(960 - 63, max_tokens=64))
    held = [submit_one(session, spec(64, max_tokens=64)).id for _ in range(3)]
    claimed = [claim_one(session) for _ in range(2)]
    assert [each.lease.job_id for each in claimed] == held[:2]
    assert claims.claim(session, ENGINE, POLICY) is None
    blocks = session.scalars(select(Reservation.blocks)).all()
    assert list(blocks) == [12, 12]
    assert too_large.state == JobState.FAILED
    assert too_large.error is not None
    excess = {"prompt_tokens": 897, "max_tokens": 64, "limit": 960, "limit_name": "kv_cache_tokens"}
    assert too_large.error["details"] == excess


@pytest.mark.parametrize("num_engines", [1, 2])
def test_racing_workers_never_reserve_too_much_and_never_share_a_job(
    sessions: sessionmaker[Session], num_engines: int
) -> None:
    small = Capacity(
        max_batch_size=4, max_blocks=40, tokens_per_block=64, max_input_len=2000, max_seq_len=2560
    )
    names = [f"engine-{place}" for place in range(num_engines)]
    with sessions.begin() as session:
        for name in names:
            register_engine(session, name, small)
        for size in (1000, 200, 64, 1900, 640, 100) * 5:
            submit_one(session, spec(size, max_tokens=64))
    claimed: list[object] = []
    lock = threading.Lock()

    def work(name: str) -> None:
        while True:
            with sessions.begin() as session:
                mine = claims.claim(session, name, POLICY)
                reserved = session.execute(
                    select(func.count(), func.coalesce(func.sum(Reservation.blocks), 0)).where(
                        Reservation.engine_name == name
                    )
                ).one()
                assert reserved[0] <= small.max_batch_size
                assert reserved[1] <= small.max_blocks
            if mine is None:
                with sessions.begin() as session:
                    if not session.scalar(select(func.count()).where(Job.state == "queued")):
                        return
                continue
            with lock:
                claimed.append(mine.lease.job_id)
            with sessions.begin() as session:
                assert ending.complete(session, mine.lease, output_of("x"), FinishReason.STOP)
                reservations.close(session, mine.lease.lease_id)

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, names[place % num_engines]) for place in range(6)]:
            done.result(timeout=60)
    assert len(claimed) == len(set(claimed)) == 30


def test_a_lease_that_expired_is_never_renewed(session: Session) -> None:
    register_engine(session)
    submit_one(session)
    held = claim_one(session, policy=replace(POLICY, lease=timedelta(seconds=-1)))
    assert leases.renew(session, [held.lease], lease=timedelta(seconds=60)) == set()


def test_a_job_in_every_terminal_state_can_be_made(session: Session) -> None:
    for state in JobState:
        if state not in (JobState.BLOCKED, JobState.RUNNING):
            job = job_in(session, state)
            assert job.state == state
            session.rollback()


@pytest.mark.parametrize(
    ("task", "is_first_largest"), [("generate", True), ("summary_whole", True), ("summary_map", False)]
)
def test_whole_documents_are_packed_together_and_trees_one_after_another(
    session: Session, task: str, *, is_first_largest: bool
) -> None:
    register_engine(session)
    small, large = submit_one(session, spec(2_000)), submit_one(session, spec(40_000))
    earlier = small.created_at - timedelta(hours=1)
    for job in (small, large):
        job.task = task
        job.summary_id = None if task == "generate" else uuid7()
        job.created_at = earlier  # submitted together, as far as it matters
    session.flush()
    expected = large if is_first_largest else small
    assert claim_one(session).lease.job_id == expected.id


def test_a_claim_does_not_wait_for_a_change_of_the_overtaken_head(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        register_engine(session)
        submit_one(session, spec(90_000))
        claim_one(session)
        head = submit_one(session, spec(90_000))
        small = submit_one(session, spec())
    with transaction(sessions) as other:
        other.execute(select(Job.id).where(Job.id == head.id).with_for_update())
        with transaction(sessions) as session:
            session.execute(text("SET LOCAL lock_timeout = '500ms'"))
            assert claim_one(session).lease.job_id == small.id
