"""Requests sent before their jobs are claimed: what is foretold, and what a tick makes of it."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from claiming import claims
from jobs import lifecycle
from jobs.completing import JobCompletion
from jobs.engines.capacity import Capacity
from jobs.models import DEFAULT_TENANT, Engine, Job, Reservation
from jobs.scheduling import engine_load, previews, ticks
from jobs.scheduling.choosing import without
from jobs.scheduling.claims import ClaimResult
from jobs.scheduling.head_starts import Begun, FilledSlot, HeadStart
from jobs.scheduling.previews import Preview
from jobs.scheduling.starts import Claim
from jobs.states import FinishReason, Lane
from support import ENGINE, POLICY, output_of, register_engine, spec, submit_one

# Room for one job of 600 tokens and some short ones.
TIGHT = Capacity(max_batch_size=4, max_blocks=20, tokens_per_block=64, max_input_len=1000, max_seq_len=1280)
# Room for several.
CROWDED = replace(TIGHT, max_blocks=60)


def foretell(result: ClaimResult, preview: Preview, ended: Sequence[Claim]) -> list[HeadStart]:
    """Begin what is foretold for the slots of these runs, which end one after the other."""
    outlook, filled = result.outlook, list[FilledSlot]()
    if outlook is None:
        return []
    for each in ended:
        begun = {slot.head_start.lease.job_id for slot in filled if slot.head_start is not None}
        candidates = [one for one in preview.candidates if one.job.id not in begun]
        next_one = outlook.successor(candidates, ended=each.lease.lease_id)
        filled.append(FilledSlot(each.lease.lease_id, next_one))
        outlook = outlook.refilled(filled[-1])
    return [slot.head_start for slot in filled if slot.head_start is not None]


def end(
    session: Session,
    ended: Sequence[Claim],
    *,
    preview: Preview | None = None,
    begun: Sequence[HeadStart] = (),
) -> ClaimResult:
    completions = [
        JobCompletion(each.lease, output_of("x"), FinishReason.STOP, engine_is_done=True) for each in ended
    ]
    return ticks.tick(session, ENGINE, POLICY, ended=completions, preview=preview, begun=Begun(begun)).claimed


def places(session: Session) -> list[Reservation]:
    return list(session.scalars(select(Reservation).where(Reservation.state == "draining")))


def crowd(session: Session, rng: random.Random) -> ClaimResult:
    """Jobs of all sizes, of which the first run."""
    register_engine(session, capacity=CROWDED)
    for _ in range(40):
        submit_one(session, spec(rng.randint(20, 900), max_tokens=rng.choice([16, 64, 256])))
    return claims.claim_all(session, ENGINE, POLICY)


@pytest.fixture
def full(session: Session) -> ClaimResult:
    """All four slots taken; four jobs wait."""
    register_engine(session)
    for _ in range(8):
        submit_one(session)
    result = claims.claim_all(session, ENGINE, POLICY)
    assert len(result.claims) == 4
    return result


def test_what_is_foretold_is_what_a_tick_starts(session: Session) -> None:
    rng = random.Random(7)  # noqa: S311
    result = crowd(session, rng)
    running, num_foretold = list(result.claims), 0
    while running:
        preview = previews.preview_claims(session, ENGINE, POLICY)
        leaving = rng.choice(running)
        foretold = foretell(result, preview, [leaving])
        result = end(session, [leaving], preview=preview)
        started = [each.lease.job_id for each in result.claims]
        assert started[:1] == [each.lease.job_id for each in foretold]
        running = [each for each in running if each is not leaving] + list(result.claims)
        num_foretold += len(foretold)
    assert num_foretold > 25, "the list has mostly been foretold"


def test_a_tick_claims_every_head_start_and_books_no_more_than_there_is(session: Session) -> None:
    rng = random.Random(8)  # noqa: S311
    result = crowd(session, rng)
    running, num_begun = list(result.claims), 0
    while running:
        preview = previews.preview_claims(session, ENGINE, POLICY)
        leaving = rng.sample(running, rng.randint(1, len(running)))
        begun = foretell(result, preview, leaving)
        result = end(session, leaving, preview=preview, begun=begun)
        assert {each.lease for each in begun} <= {each.lease for each in result.claims}
        running = [each for each in running if each not in leaving] + list(result.claims)
        assert places(session) == []
        engine = session.get_one(Engine, ENGINE)
        assert sum(each.blocks for each in running) <= CROWDED.max_blocks
        assert len(engine_load.read(session, engine).running) == len(running) <= CROWDED.max_batch_size
        num_begun += len(begun)
    assert num_begun > 15
    assert set(session.scalars(select(Job.state))) == {"completed"}


def test_the_job_of_a_head_start_is_charged_as_any_other(session: Session, full: ClaimResult) -> None:
    preview = previews.preview_claims(session, ENGINE, POLICY)
    (begun,) = foretell(full, preview, full.claims[:1])
    (claim,) = end(session, full.claims[:1], preview=preview, begun=[begun]).claims
    assert (claim.lease, claim.blocks) == (begun.lease, begun.ranked.size.blocks)
    held = session.get_one(Reservation, begun.lease.lease_id)
    assert (held.state, held.blocks, held.charged_prompt) == ("held", claim.blocks, claim.job.prompt_tokens)


def test_a_job_cancelled_meanwhile_leaves_its_place_to_its_request(
    session: Session, full: ClaimResult
) -> None:
    preview = previews.preview_claims(session, ENGINE, POLICY)
    (begun,) = foretell(full, preview, full.claims[:1])
    lifecycle.cancel(session, begun.lease.job_id, tenant_id=DEFAULT_TENANT)
    result = end(session, full.claims[:1], preview=preview, begun=[begun])
    assert (result.claims, result.free_slots) == ([], 0), "the slot is taken until the request is over"
    (place,) = places(session)
    assert (place.lease_id, place.blocks) == (begun.lease.lease_id, begun.ranked.candidate.blocks)
    session.delete(place)
    session.flush()
    assert len(ticks.tick(session, ENGINE, POLICY, ended=[]).claimed.claims) == 1


def test_a_paused_engine_keeps_the_place_and_starts_nothing(session: Session, full: ClaimResult) -> None:
    preview = previews.preview_claims(session, ENGINE, POLICY)
    (begun,) = foretell(full, preview, full.claims[:1])
    session.get_one(Engine, ENGINE).paused_reason = "operator"
    session.flush()
    assert end(session, full.claims[:1], preview=preview, begun=[begun]).claims == ()
    assert [each.lease_id for each in places(session)] == [begun.lease.lease_id]
    assert session.get_one(Job, begun.lease.job_id).state == "queued"


def test_nothing_is_foretold_while_an_interactive_job_waits(session: Session, full: ClaimResult) -> None:
    preview = previews.preview_claims(session, ENGINE, POLICY)
    submit_one(session, spec(lane=Lane.INTERACTIVE))
    result = ticks.tick(session, ENGINE, POLICY, ended=[]).claimed
    assert foretell(result, preview, full.claims[:1]) == []


def test_nothing_is_foretold_beside_a_job_that_must_run_alone(session: Session) -> None:
    register_engine(session)
    suspected = submit_one(session)
    suspected.num_rescues = POLICY.max_rescues
    session.flush()
    submit_one(session)
    result = claims.claim_all(session, ENGINE, POLICY)
    assert [each.lease.job_id for each in result.claims] == [suspected.id]
    assert foretell(result, previews.preview_claims(session, ENGINE, POLICY), result.claims) == []


def test_a_tick_that_starts_nothing_keeps_the_places(session: Session, full: ClaimResult) -> None:
    preview = previews.preview_claims(session, ENGINE, POLICY)
    (begun,) = foretell(full, preview, full.claims[:1])
    completion = JobCompletion(full.claims[0].lease, output_of("x"), FinishReason.STOP, engine_is_done=True)
    ticks.tick(session, ENGINE, None, ended=[completion], begun=Begun([begun]))
    assert [each.lease_id for each in places(session)] == [begun.lease.lease_id]


def test_a_tick_does_not_start_the_job_of_a_head_start_whose_run_it_does_not_store(
    session: Session, full: ClaimResult
) -> None:
    preview = previews.preview_claims(session, ENGINE, POLICY)
    stored, late = full.claims[:2]
    (begun,) = foretell(full, preview, [late])
    there = Begun(under_way=[FilledSlot(late.lease.lease_id, begun)])
    completion = JobCompletion(stored.lease, output_of("x"), FinishReason.STOP, engine_is_done=True)
    result = ticks.tick(session, ENGINE, POLICY, ended=[completion], preview=preview, begun=there).claimed
    assert len(result.claims) == 1
    assert result.claims[0].lease.job_id != begun.lease.job_id
    last = end(session, [late], preview=preview, begun=[begun])
    assert [each.lease for each in last.claims] == [begun.lease]


def test_a_tick_leaves_the_blocks_to_a_head_start_whose_run_it_does_not_store(session: Session) -> None:
    register_engine(session, capacity=TIGHT)
    for _ in range(2):
        submit_one(session, spec(300, max_tokens=100))
    result = claims.claim_all(session, ENGINE, POLICY)
    assert len(result.claims) == 2
    submit_one(session, spec(900, max_tokens=100))
    submit_one(session, spec(400, max_tokens=100))
    preview = previews.preview_claims(session, ENGINE, POLICY)
    stored, late = result.claims
    assert result.outlook is not None
    outlook = result.outlook.refilled(FilledSlot(stored.lease.lease_id))
    begun = outlook.successor(preview.candidates, ended=late.lease.lease_id)
    assert begun is not None
    completion = JobCompletion(stored.lease, output_of("x"), FinishReason.STOP, engine_is_done=True)
    there = Begun(under_way=[FilledSlot(late.lease.lease_id, begun)])
    claimed = ticks.tick(
        session, ENGINE, POLICY, ended=[completion], preview=preview, begun=there
    ).claimed.claims
    assert sum(each.blocks for each in claimed) + begun.ranked.candidate.blocks <= TIGHT.max_blocks


def test_blocks_that_a_large_run_leaves_to_a_smaller_one_stay_reserved_until_its_end_is_stored(
    session: Session,
) -> None:
    register_engine(session, capacity=TIGHT)
    submit_one(session, spec(900, max_tokens=100))
    result = claims.claim_all(session, ENGINE, POLICY)
    (large,) = result.claims
    assert result.outlook is not None
    free_blocks = result.outlook.load.budget.free_blocks
    small = submit_one(session, spec(100, max_tokens=20))
    submit_one(session, spec(400, max_tokens=100))
    preview = previews.preview_claims(session, ENGINE, POLICY)
    only = [each for each in preview.candidates if each.job.id == small.id]
    begun = result.outlook.successor(only, ended=large.lease.lease_id)
    assert begun is not None
    slot = FilledSlot(large.lease.lease_id, begun)
    assert result.outlook.refilled(slot).load.budget.free_blocks == free_blocks
    ticks.tick(session, ENGINE, POLICY, ended=[], preview=preview, begun=Begun(under_way=[slot]))
    reserved = sum(session.scalars(select(Reservation.blocks)))
    assert reserved <= TIGHT.max_blocks


def test_what_a_tick_starts_in_free_slots_is_foretold_too(session: Session) -> None:
    rng = random.Random(9)  # noqa: S311
    result = crowd(session, rng)
    running = list(result.claims)
    while running:
        preview = previews.preview_claims(session, ENGINE, POLICY)
        leaving = rng.sample(running, rng.randint(1, len(running)))
        assert result.outlook is not None
        outlook = result.outlook
        for each in leaving:
            outlook = replace(outlook, load=without(outlook.load, each.lease.lease_id))
        _, foretold = outlook.ticked(preview.candidates)
        result = end(session, leaving, preview=preview)
        assert {each.job.id for each in result.claims} == foretold
        running = [each for each in running if each not in leaving] + list(result.claims)


def test_while_a_tick_is_under_way_nothing_is_foretold_that_needs_more_than_the_run_leaves(
    session: Session, full: ClaimResult
) -> None:
    preview = previews.preview_claims(session, ENGINE, POLICY)
    outlook, (first, second, *_) = full.outlook, [each.lease.lease_id for each in full.claims]
    assert outlook is not None
    assert outlook.successor(preview.candidates, ended=first, is_ticking=True) is not None
    emptier = outlook.refilled(FilledSlot(second))
    assert emptier.successor(preview.candidates, ended=first, is_ticking=True) is not None
    large = submit_one(session, spec(900, max_tokens=100))
    preview = previews.preview_claims(session, ENGINE, POLICY)
    only = [each for each in preview.candidates if each.job.id == large.id]
    assert outlook.successor(only, ended=first) is not None
    assert outlook.successor(only, ended=first, is_ticking=True) is None
