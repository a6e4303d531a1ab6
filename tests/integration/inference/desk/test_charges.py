"""What a tenant is charged for a run, whoever stores its end and when."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from claiming.desks import hand_in, tick_until_done
from jobs import lifecycle
from jobs.database import database_now, transaction
from jobs.engines import served_tokens
from jobs.models import Job, Summary
from jobs.starting import Claim
from jobs.states import FinishReason
from jobs.transitions import LeaseLost
from summary_support import create, ready_document, text_of
from support import output_of
from worker.inference.desk import Desk
from worker.inference.outcome import Finished, RunEnd


def served(sessions: sessionmaker[Session], claim: Claim) -> float:
    with sessions() as session:
        return served_tokens.served(session, claim.job.tenant_id, claim.job.model)


def test_a_worker_killed_before_it_stored_an_end_has_charged_for_no_token_that_is_lost(
    sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    claim, before = running[0], served(sessions, running[0])
    saved = output_of("a few", 2)
    with transaction(sessions) as session:
        ending.checkpoint(session, claim.lease, saved)
    with sessions() as other, other.begin():
        other.execute(select(Job.id).where(Job.id == claim.lease.job_id).with_for_update())
        hand_in(desk, claim, output_of("a few more tokens", 4))
        desk.tick(None)
    with transaction(sessions) as session:
        later = database_now(session) + timedelta(minutes=2)
        (job,) = lifecycle.rescue(session, now=later, max_rescues=2, only=[claim.lease.job_id])
    assert job.completion_tokens == saved.num_tokens
    assert served(sessions, claim) - before == saved.num_tokens - claim.output_tokens


def test_a_run_whose_lease_ran_out_charges_for_no_token_that_is_lost(
    sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    claim, before = running[0], served(sessions, running[0])
    saved = output_of("a few", 2)
    with transaction(sessions) as session:
        ending.checkpoint(session, claim.lease, saved)
        ending.report_progress(session, claim.lease, completion_tokens=4)
    stored = hand_in(desk, claim, output_of("a few more tokens", 4), RunEnd(LeaseLost(), engine_is_done=True))
    desk.tick(None)
    assert stored.result(timeout=0).state is None
    assert served(sessions, claim) - before == saved.num_tokens - claim.output_tokens


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("is_locked", [False, True])
@pytest.mark.parametrize("cached", [None, 0, 64])
def test_an_account_is_charged_for_what_was_computed_and_generated_whoever_held_the_row(
    sessions: sessionmaker[Session],
    desk: Desk,
    running: list[Claim],
    *,
    cached: int | None,
    is_locked: bool,
    is_done: bool,
) -> None:
    claim, output = running[0], replace(output_of("a few more tokens than none"), cached_tokens=cached)
    before = served(sessions, claim)
    with sessions() as other, other.begin():
        if is_locked:
            other.execute(select(Job.id).where(Job.id == claim.lease.job_id).with_for_update())
        hand_in(desk, claim, output, RunEnd(Finished(FinishReason.STOP), engine_is_done=is_done))
        desk.tick(None)
    desk.tick(None)
    assert served(sessions, claim) - before == output.num_tokens - claim.output_tokens - (cached or 0)
    with sessions() as session:
        assert session.get_one(Job, claim.lease.job_id).cached_tokens == cached


@pytest.mark.parametrize("num_saved", [0, 2])
def test_an_answer_whose_tree_was_held_is_charged_for_whoever_stores_it(
    sessions: sessionmaker[Session], desk: Desk, running: list[Claim], num_saved: int
) -> None:
    part, other_part, good = running[:3]
    output = output_of("a few more tokens than none")
    before = served(sessions, part)
    with transaction(sessions) as session:
        (tree,) = create(session, ready_document(session, text_of(50)))
        parts = [part.lease.job_id, other_part.lease.job_id]
        session.execute(update(Job).where(Job.id.in_(parts)).values(summary_id=tree.id))
        if num_saved:
            ending.checkpoint(session, part.lease, output_of("a few", num_saved))
    with sessions() as other, other.begin():
        other.execute(select(Summary.id).where(Summary.id == tree.id).with_for_update())
        late = [hand_in(desk, each, output, tree_id=tree.id) for each in (part, other_part)]
        for _ in range(3):
            desk.tick(None)
        assert not any(each.done() for each in late)
    late.append(hand_in(desk, good, output))
    tick_until_done(desk, late)
    expected = sum(output.num_tokens - each.output_tokens for each in (part, other_part, good))
    assert served(sessions, part) - before == expected
