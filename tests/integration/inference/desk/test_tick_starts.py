"""What a tick starts, and which prompts are loaded for the next ones."""

import json
from dataclasses import replace
from datetime import timedelta

from sqlalchemy import select, text, update
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.models import TenantAccount
from jobs.prompts.counter import PromptCounter
from jobs.prompts.store import NewText
from jobs.prompts.tokenizer import Tokenizer
from jobs.scheduling import tick
from jobs.scheduling.output_history import History
from support import ENGINE, POLICY, new_tenant, register_engine, spec, submit_one
from worker.inference.prefetch import PromptPrefetcher


def test_prompts_of_the_head_of_the_queue_are_prefetched_except_those_that_cannot_be_read(
    sessions: sessionmaker[Session], tokenizer: Tokenizer
) -> None:
    counter = PromptCounter(tokenizer)
    prefetcher = PromptPrefetcher(sessions, counter)
    with transaction(sessions) as session:
        register_engine(session)
        for each in range(8):
            prompt = json.dumps([{"role": "user", "content": str(each)}])
            submit_one(session, replace(spec(), text=NewText(prompt, counter.count_prompt(prompt))))
        left = tick.tick(session, ENGINE, POLICY, ended=[]).left
        assert left is not None
        assert len(left) == 4
        broken, uncounted, *others = (each.text_id for each in left)
        garbled = text("UPDATE texts SET token_ids = 'not compressed', body = 'neither' WHERE id = :id")
        session.execute(garbled, {"id": broken})
        session.execute(text("UPDATE texts SET fingerprint = 'another' WHERE id = :id"), {"id": uncounted})
    prefetcher.expect(left)
    prefetcher.refresh()
    assert prefetcher.missing([broken, uncounted, *others]) == [broken]
    taken = prefetcher.take(uncounted)
    assert taken is not None
    assert prefetcher.take(uncounted) is None, "a run has it"


def test_a_tenant_that_came_is_active_though_none_of_its_jobs_has_started(session: Session) -> None:
    register_engine(session)
    policy = replace(POLICY, history=History(keep=timedelta(minutes=1)))  # so that a look reads nothing else
    late = new_tenant(session)
    submit_one(session, spec(90_000))
    assert len(tick.tick(session, ENGINE, policy, ended=[]).claims) == 1
    submit_one(session, spec(90_000), tenant_id=late)
    for _ in range(2):
        session.execute(update(TenantAccount).values(is_active=False))
        assert not tick.tick(session, ENGINE, policy, ended=[]).claims
        active = select(TenantAccount.is_active).where(TenantAccount.tenant_id == late)
        assert session.scalar(active) is True
