"""Claims that use an older preview: no waiting job is overlooked."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Engine, event, update
from sqlalchemy.orm import Session

from claiming import claims
from jobs import lifecycle
from jobs.engines import served_tokens
from jobs.engines.capacity import Capacity
from jobs.models import Engine as EngineModel
from jobs.models import Job
from jobs.scheduling import previews, ticks
from jobs.scheduling.candidates import MAX_TENANTS
from jobs.scheduling.claims import FreedSlot
from jobs.scheduling.rivals import Rivals
from jobs.scheduling.starts import Claim
from jobs.states import FinishReason, Lane
from support import (
    ENGINE,
    ERROR,
    MODEL,
    POLICY,
    claim_one,
    new_tenant,
    output_of,
    register_engine,
    spec,
    submit_one,
)

SMALL = Capacity(
    max_batch_size=4, max_blocks=512, tokens_per_block=64, max_input_len=8000, max_seq_len=16_000
)


LARGE = Capacity(
    max_batch_size=32, max_blocks=4096, tokens_per_block=64, max_input_len=8000, max_seq_len=16_000
)


@contextmanager
def starts(engine: Engine) -> Iterator[list[str]]:
    """The statements that start jobs."""
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "INSERT INTO reservations" in statement:
            seen.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


def complete(session: Session, claimed: Claim) -> FreedSlot:
    assert lifecycle.complete(session, claimed.lease, output_of("x"), FinishReason.STOP)
    return FreedSlot(claimed.lease.lease_id, 3)


def test_a_free_slot_goes_to_an_interactive_job_that_no_preview_has_seen(
    session: Session,
) -> None:
    register_engine(session)
    for _ in range(8):
        submit_one(session)
    running = [claim_one(session) for _ in range(4)]
    preview = previews.preview_claims(session, ENGINE, POLICY)
    asking = submit_one(session, spec(lane=Lane.INTERACTIVE))
    ended = [complete(session, running[0])]
    (found,) = claims.claim_all(session, ENGINE, POLICY, ended=ended, preview=preview).claims
    assert found.lease.job_id == asking.id


def test_a_new_tenant_gets_its_share_of_an_engine_that_is_always_full(session: Session) -> None:
    register_engine(session)
    old = new_tenant(session)
    for _ in range(40):
        submit_one(session, tenant_id=old)
    running = [claim_one(session) for _ in range(4)]
    new = new_tenant(session)
    for _ in range(40):
        submit_one(session, tenant_id=new)
    owners: Counter[UUID] = Counter()
    for _ in range(20):
        preview = previews.preview_claims(session, ENGINE, POLICY)
        ended = [complete(session, running.pop(0))]
        (found,) = claims.claim_all(session, ENGINE, POLICY, ended=ended, preview=preview).claims
        owners[found.job.tenant_id] += 1
        running.append(found)
    assert min(owners[old], owners[new]) >= 8  # nearly half: reservations of equal jobs are settled later
    assert served_tokens.served(session, new, MODEL) > 0


def test_tenants_whose_jobs_fit_only_another_engine_keep_no_other_from_this_one(session: Session) -> None:
    register_engine(session)
    register_engine(session, "small", SMALL)
    for _ in range(MAX_TENANTS):
        submit_one(session, spec(50_000), tenant_id=new_tenant(session))
    last = submit_one(session, spec(100), tenant_id=new_tenant(session))
    assert claim_one(session, "small").lease.job_id == last.id


def test_a_job_that_failed_since_its_preview_waits_for_its_retry(session: Session) -> None:
    register_engine(session)
    register_engine(session, "engine-b")
    job = submit_one(session)
    preview = previews.preview_claims(session, ENGINE, POLICY)
    elsewhere = claim_one(session, "engine-b")
    lifecycle.retry(session, elsewhere.lease, ERROR, max_attempts=3, backoff=timedelta(minutes=5))
    assert not claims.claim_all(session, ENGINE, POLICY, preview=preview).claims
    session.execute(update(Job).where(Job.id == job.id).values(run_after=None))
    assert claim_one(session).lease.job_id == job.id


def test_a_job_that_ran_since_its_preview_pays_for_its_prompt_once(session: Session) -> None:
    register_engine(session)
    register_engine(session, "engine-b")
    tenant_id = new_tenant(session)
    submit_one(session, spec(1000), tenant_id=tenant_id)
    preview = previews.preview_claims(session, ENGINE, POLICY)
    elsewhere = claim_one(session, "engine-b")
    lifecycle.release(session, elsewhere.lease)
    ended = [FreedSlot(elsewhere.lease.lease_id, 0)]
    claims.claim_all(session, "engine-b", POLICY, ended=ended, limit=0)
    (found,) = claims.claim_all(session, ENGINE, POLICY, preview=preview).claims
    assert served_tokens.served(session, tenant_id, MODEL) == 1000 + found.output_tokens


def test_jobs_that_a_new_engine_started_since_a_preview_cost_one_statement_more(
    engine: Engine, session: Session
) -> None:
    register_engine(session)
    policy = replace(POLICY, rivals=Rivals())
    for _ in range(60):
        submit_one(session)
    preview = previews.preview_claims(session, ENGINE, policy)
    register_engine(session, "engine-b", LARGE)
    assert len(claims.claim_all(session, "engine-b", POLICY).claims) == 32
    with starts(engine) as first:
        mine = claims.claim_all(session, ENGINE, policy, preview=preview).claims
    assert len(mine) == 4
    assert len(first) == 2, "one for jobs that were taken, one for others"
    ended = [complete(session, each) for each in mine]
    with starts(engine) as second:
        assert len(claims.claim_all(session, ENGINE, policy, preview=preview, ended=ended).claims) == 4
    assert len(second) == 1, "what is taken is left out beforehand"


def test_a_tick_leaves_out_what_another_engine_has_started_since_the_preview(
    engine: Engine, session: Session
) -> None:
    register_engine(session)
    register_engine(session, "engine-b", LARGE)
    policy = replace(POLICY, rivals=Rivals())
    assert policy.rivals is not None
    for _ in range(60):
        submit_one(session)
    preview = previews.preview_claims(session, ENGINE, policy)
    assert len(claims.claim_all(session, "engine-b", POLICY).claims) == 32
    policy.rivals.note_missed()
    with starts(engine) as started:
        mine = ticks.tick(session, ENGINE, policy, ended=[], preview=preview).claimed.claims
    assert (len(mine), len(started)) == (4, 1)


def rivals_of(session: Session, **changed: object) -> bool:
    """Whether a preview of one engine takes a second one for a rival, which was changed so."""
    policy = replace(POLICY, rivals=Rivals())
    for name in (ENGINE, "engine-b"):
        register_engine(session, name)
    if changed:
        session.execute(update(EngineModel).where(EngineModel.name == "engine-b").values(changed))
    previews.preview_claims(session, ENGINE, policy)
    return policy.has_rivals


def test_a_preview_finds_the_engines_that_take_from_the_queue(session: Session) -> None:
    assert rivals_of(session)
    assert not rivals_of(session, paused_reason="not ready")
    assert not rivals_of(session, seen_at=datetime.now(UTC) - timedelta(minutes=1))
    assert not rivals_of(session, model="another")
    assert not rivals_of(session, max_input_len=1000), "it cannot take all that this one takes"


def test_a_queue_with_rivals_is_read_in_order(session: Session) -> None:
    capacity = replace(LARGE, max_batch_size=16, max_blocks=2**15, max_input_len=96_000, max_seq_len=131_072)
    policy = replace(POLICY, rivals=Rivals(), prediction=None)
    for name in (ENGINE, "engine-b"):
        register_engine(session, name, capacity)
    for _ in range(40):
        submit_one(session, spec(100, max_tokens=100, rank=1))
    for prompt_tokens in (100, 2100, 4100, 8200, 16_400, 32_800, 65_600) * 6:
        submit_one(session, spec(prompt_tokens, max_tokens=100))
    preview = previews.preview_claims(session, ENGINE, policy)
    assert policy.has_rivals
    started = claims.claim_all(session, ENGINE, policy, preview=preview).claims
    assert {session.get_one(Job, each.lease.job_id).rank for each in started} == {1}
    assert len(started) == 16


def test_an_engine_without_rivals_takes_equal_jobs_in_order(session: Session) -> None:
    clock = iter([0.0, 1.0, 5.0])
    rivals = Rivals(clock=lambda: next(clock))
    rivals.note_missed()
    assert rivals.are_near
    assert not rivals.are_near, "the miss is long ago"
    register_engine(session)
    jobs = [submit_one(session).id for _ in range(6)]
    found = claims.claim_all(session, ENGINE, replace(POLICY, rivals=Rivals())).claims
    assert [each.lease.job_id for each in found] == jobs[:4]
