"""What a tick starts, and what it has read and planned for that."""

import json
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from claiming import claims
from jobs.database import database_now, transaction
from jobs.engines.capacity import Capacity
from jobs.models import DEFAULT_TENANT, TenantAccount
from jobs.prompts.counter import PromptCounter
from jobs.prompts.store import NewText
from jobs.prompts.tokenizer import Tokenizer
from jobs.scheduling import ticks
from jobs.scheduling.output_history import History
from jobs.scheduling.ticks import Expected
from jobs.states import Lane
from support import CAPACITY, ENGINE, MODEL, POLICY, new_tenant, register_engine, spec, submit_one
from worker.inference.prefetch import PromptPrefetcher


def test_a_start_reads_the_prompts_of_its_jobs_unless_they_are_long(
    sessions: sessionmaker[Session], tokenizer: Tokenizer
) -> None:
    counter = PromptCounter(tokenizer)
    prefetcher = PromptPrefetcher(sessions, ENGINE, lambda: POLICY, counter)
    policy = replace(POLICY, read_prompts=prefetcher.read_with)
    with transaction(sessions) as session:
        register_engine(session)
        for words, num_tokens in (("short", 10), ("long", 20_000)):
            prompt = json.dumps([{"role": "user", "content": words}])
            counted = replace(counter.count_prompt(prompt), num_tokens=num_tokens)
            submit_one(session, replace(spec(), text=NewText(prompt, counted)))
    with transaction(sessions) as session:
        started = claims.claim_all(session, ENGINE, policy).claims
    taken = {each.job.prompt_tokens: prefetcher.take(each.job.text_id or UUID(int=0)) for each in started}
    assert {num_tokens: prompt and prompt.num_tokens for num_tokens, prompt in taken.items()} == {
        10: 10,
        20_000: None,
    }


def test_a_preview_that_has_none_of_the_candidates_is_due_at_once(
    sessions: sessionmaker[Session], tokenizer: Tokenizer
) -> None:
    """A preview of an idle engine has nothing of the hundreds of jobs that come after it."""
    now = 0.0
    counter = PromptCounter(tokenizer)
    prefetcher = PromptPrefetcher(sessions, ENGINE, lambda: POLICY, counter, clock=lambda: now)
    with transaction(sessions) as session:
        register_engine(session)
    prefetcher.refresh()
    assert prefetcher.due_in() == 0.2
    with transaction(sessions) as session:
        for each in range(8):
            prompt = json.dumps([{"role": "user", "content": str(each)}])
            submit_one(session, replace(spec(), text=NewText(prompt, counter.count_prompt(prompt))))
        left = ticks.tick(session, ENGINE, POLICY, ended=[]).claimed.left
    assert left
    prefetcher.keep(left)
    assert prefetcher.due_in() == 0.05
    now = 0.06
    prefetcher.refresh()
    assert prefetcher.missing(each.job.text_id for each in left) == []
    prefetcher.keep(left)
    assert prefetcher.due_in() == pytest.approx(0.5)


SMALLER = replace(CAPACITY, max_input_len=CAPACITY.max_input_len - 1)


@pytest.mark.parametrize("expected", [(MODEL, CAPACITY), ("another", CAPACITY), (MODEL, SMALLER), None])
@pytest.mark.parametrize("num_tenants", [1, 2])
def test_a_tick_starts_what_waits_for_its_engine_whatever_it_took_it_for(
    session: Session, expected: tuple[str, Capacity] | None, num_tenants: int
) -> None:
    register_engine(session)
    tenants = [DEFAULT_TENANT, *(new_tenant(session) for _ in range(1, num_tenants))]
    waiting = [submit_one(session, tenant_id=each).id for each in tenants]
    foreseen = None if expected is None else Expected(*expected)
    found = ticks.tick(session, ENGINE, POLICY, ended=[], expected=foreseen).claimed.claims
    assert sorted(claim.job.id for claim in found) == sorted(waiting)
    assert {claim.job.model for claim in found} == {MODEL}


def test_what_is_read_at_once_obeys_the_clock_and_the_lanes(session: Session) -> None:
    register_engine(session)
    late, interactive = submit_one(session), submit_one(session, spec(lane=Lane.INTERACTIVE))
    late.run_after = database_now(session) + timedelta(hours=1)
    session.flush()
    foreseen = Expected(MODEL, CAPACITY)
    found = ticks.tick(session, ENGINE, POLICY, ended=[], expected=foreseen).claimed.claims
    assert [claim.job.id for claim in found] == [interactive.id]


def test_a_tenant_that_came_is_active_though_none_of_its_jobs_has_started(session: Session) -> None:
    register_engine(session)
    policy = replace(POLICY, history=History(keep=timedelta(minutes=1)))  # so that a look reads nothing else
    foreseen, late = Expected(MODEL, CAPACITY), new_tenant(session)
    submit_one(session, spec(90_000))
    assert len(ticks.tick(session, ENGINE, policy, ended=[], expected=foreseen).claimed.claims) == 1
    submit_one(session, spec(90_000), tenant_id=late)
    for _ in range(2):
        session.execute(update(TenantAccount).values(is_active=False))
        assert not ticks.tick(session, ENGINE, policy, ended=[], expected=foreseen).claimed.claims
        active = select(TenantAccount.is_active).where(TenantAccount.tenant_id == late)
        assert session.scalar(active) is True
