"""Jobs reserve what their peers make likely and go on in segments, without the caller noticing."""

from collections.abc import Callable
from dataclasses import replace

from sqlalchemy.orm import Session

import ending
from jobs.engines import reservations
from jobs.models import Job, Reservation
from jobs.scheduling import growth
from jobs.scheduling.growth import Granted, WaitForBlocks, Yielded
from jobs.scheduling.prediction import FEW
from jobs.scheduling.sizing import ClaimPolicy
from jobs.settings import Settings
from jobs.starting import Claim
from jobs.states import FinishReason
from jobs.transitions import LeaseLost
from support import ENGINE, POLICY, claim_one, output_of, register_engine, spec, submit_one
from worker_support import Queue, running_worker

DOCUMENT = "A document whose answer takes a while. 日本語 and 🙂 too."


def test_an_answer_longer_than_its_reservation_equals_one_that_was_reserved_whole(
    queue: Queue, feeding: Callable[..., Settings]
) -> None:
    settings = feeding()
    whole = settings.model_copy(
        update={"engine": settings.engine.model_copy(update={"reserve_predicted": False})}
    )
    with running_worker(whole, queue.tokenizer):
        at_once = queue.submit(DOCUMENT, max_tokens=6000)
        queue.ended(at_once)
    with running_worker(settings, queue.tokenizer):
        in_segments = queue.submit(DOCUMENT, max_tokens=6000)
        queue.streaming(in_segments)
        (reserved,) = queue.reservations()
        ended = queue.ended(in_segments)
    assert reserved.output_tokens < 6000
    assert (ended.finish_reason, ended.completion_tokens, ended.attempt) == ("length", 6000, 0)
    assert ended.cached_tokens == 0, "later segments found the job's own prompt"
    assert queue.result_ids(in_segments) == queue.result_ids(at_once)
    assert queue.reservations() == []


def test_an_answer_that_ends_in_a_later_segment_says_stop(
    queue: Queue, feeding: Callable[..., Settings]
) -> None:
    with running_worker(feeding(), queue.tokenizer):
        job_id = queue.submit("Go on for a while. [[tokens=2500]]", max_tokens=6000)
        ended = queue.ended(job_id)
    assert (ended.finish_reason, ended.completion_tokens) == ("stop", 2500)


def test_jobs_that_outgrow_the_pool_all_complete(queue: Queue, feeding: Callable[..., Settings]) -> None:
    """Four answers that no longer fit together: they wait or give way, and none is lost or cut."""
    settings = feeding()
    with running_worker(settings, queue.tokenizer):
        job_ids = [queue.submit("word " * 29_000 + str(number), max_tokens=5000) for number in range(4)]
        ended = [queue.ended(job_id, timeout=150) for job_id in job_ids]
    assert [(job.state, job.completion_tokens) for job in ended] == [("completed", 5000)] * 4
    assert all(job.num_yields <= 1 for job in ended)


def running(session: Session, prompt_tokens: int, *, max_tokens: int) -> Claim:
    submit_one(session, spec(prompt_tokens, max_tokens=max_tokens))
    return claim_one(session)


def extend(session: Session, claim: Claim, policy: ClaimPolicy = POLICY) -> object:
    asked = [growth.Extension(claim.lease, claim.output_tokens)]
    return growth.extend(session, ENGINE, asked, policy=policy)[0]


def test_a_cold_reservation_covers_2048_tokens_and_a_long_prompt_s_warm_one_what_peers_needed(
    session: Session,
) -> None:
    register_engine(session)
    cold = running(session, 60_000, max_tokens=32_768)
    assert 2048 <= cold.output_tokens < 2048 + 64
    for _ in range(4 * FEW):
        reservations.close(session, cold.lease.lease_id)
        ending.complete(session, cold.lease, output_of("x", 300), FinishReason.STOP)
        cold = running(session, 60_000, max_tokens=32_768)
    assert 300 <= cold.output_tokens < 300 + 64


def test_an_extension_grows_the_reservation_and_never_past_the_pool(session: Session) -> None:
    register_engine(session)
    claim = running(session, 90_000, max_tokens=30_000)
    granted = extend(session, claim)
    assert isinstance(granted, Granted)
    assert granted.tokens > claim.output_tokens
    reserved = session.get_one(Reservation, claim.lease.lease_id, populate_existing=True)
    assert reserved.blocks * 64 >= 90_000 + granted.tokens
    assert reserved.blocks <= 2048


def test_a_job_without_room_waits_and_the_cheapest_yields_when_nobody_can_go_on(session: Session) -> None:
    register_engine(session)
    large = running(session, 94_900, max_tokens=30_000)
    small = running(session, 32_000, max_tokens=30_000)
    while isinstance(granted := extend(session, large), Granted):
        large = replace(large, output_tokens=granted.tokens)
    assert granted == WaitForBlocks()
    assert extend(session, small) == Yielded()
    assert extend(session, large) == WaitForBlocks()
    ending.yield_slot(session, small.lease, output_of("part", 5))
    reservations.close(session, small.lease.lease_id)
    assert isinstance(extend(session, large), Granted)
    yielded = session.get_one(Job, small.lease.job_id, populate_existing=True)
    assert (yielded.state, yielded.attempt, yielded.num_yields, yielded.completion_tokens) == (
        "queued",
        0,
        1,
        5,
    )


def test_a_job_that_yielded_reserves_all_that_it_may_need(session: Session) -> None:
    register_engine(session)
    first = running(session, 1000, max_tokens=30_000)
    ending.yield_slot(session, first.lease, output_of("part", 5))
    reservations.close(session, first.lease.lease_id)
    assert claim_one(session).output_tokens == 30_000


def test_a_lost_lease_gets_no_extension(session: Session) -> None:
    register_engine(session)
    claim = running(session, 1000, max_tokens=30_000)
    ending.release(session, claim.lease)
    assert extend(session, claim) == LeaseLost()
