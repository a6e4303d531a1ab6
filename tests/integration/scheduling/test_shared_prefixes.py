"""Jobs that begin with the same document: read once, on one engine, within every bound that others have."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from claiming.questions import (
    DOCUMENT,
    aged,
    ask,
    claim_all,
    drain_queue,
    end,
    interleaved,
    loaded,
    read,
    running_ids,
    sharing,
    unpredicted,
)
from jobs import leases
from jobs.database import transaction
from jobs.engines import reservations, served_tokens
from jobs.leases import JobProgress
from jobs.models import DEFAULT_TENANT, Job, PromptText, Reservation
from jobs.prompts.prefixes import digests, family
from jobs.prompts.store import CountedPrompt
from jobs.queries import QueuedJob
from jobs.scheduling.prefixes.prefix_replay import PrefixReplay
from jobs.starting import Claim
from jobs.states import FinishReason, Lane
from jobs.transitions import Lease
from support import (
    CAPACITY,
    ENGINE,
    MODEL,
    POLICY,
    WordCounter,
    claim_one,
    new_tenant,
    output_of,
    prepare_all,
    prepare_next,
    register_engine,
    spec,
    submit_one,
    within,
)

OTHER = "engine-b"


def running_claim(session: Session, job_id: UUID) -> Claim:
    """The claim of a running job."""
    job = session.get_one(Job, job_id, populate_existing=True)
    held = session.scalars(select(Reservation).where(Reservation.job_id == job_id)).one()
    started = QueuedJob(*(getattr(job, name) for name in QueuedJob._fields))
    return Claim(Lease(job_id, held.lease_id), started, held.blocks, held.output_tokens)


class LetterCounter(WordCounter):
    """A counter whose tokens are letters."""

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:  # noqa: ARG002
        ids = np.frombuffer(canonical.encode(), dtype=np.uint8).astype(np.int32)
        return CountedPrompt(b"ids", len(ids), self.fingerprint, prefixes=digests(ids))


def test_a_job_has_the_family_of_its_prompt_whoever_counted_it(session: Session) -> None:
    register_engine(session)
    submitted = ask(session, 1)
    prompt = "word " * 1000
    counted_later = submit_one(session, spec(None, prompt=prompt))
    assert prepare_next(session, LetterCounter()) is not None
    counted_before = submit_one(session, spec(None, prompt=prompt))
    assert prepare_next(session, LetterCounter()) is not None
    in_a_set = submit_one(session, spec(None, prompt="text " * 1000))
    prepare_all(within(session), LetterCounter())
    session.expire_all()
    for job in (submitted, counted_later, counted_before, in_a_set):
        session.refresh(job)
        stored = session.get_one(PromptText, job.text_id)
        assert job.family == family(stored.prefixes or b"", job.prompt_tokens or 0)
        assert job.family is not None
    assert counted_later.family == counted_before.family
    assert ask(session, 1).family == submitted.family != ask(session, 2).family
    assert ask(session, 1, tenant_id=new_tenant(session)).family != submitted.family
    assert submit_one(session, spec(100)).family is None


def test_one_job_reads_a_document_and_the_others_wait_for_it(session: Session) -> None:
    register_engine(session)
    policy, documents = sharing(), interleaved(session, 3, 3)
    readers = claim_all(session, policy)
    assert Counter(documents[each.lease.job_id] for each in readers) == {1: 1, 2: 1, 3: 1}
    assert all(each.is_awaited for each in readers)
    assert claim_all(session, policy) == [], "a slot is free, but all documents are just being read"
    read(session, readers[1])
    (follower,) = claim_all(session, policy)
    assert documents[follower.lease.job_id] == documents[readers[1].lease.job_id]


def test_a_question_that_comes_while_its_document_is_read_shows_in_the_report_that_it_is(
    session: Session,
) -> None:
    register_engine(session)
    policy = sharing()
    ask(session, 1)
    (reader,) = claim_all(session, policy)
    assert reader.is_awaited, "nobody waits yet, but somebody may"

    def is_followed() -> bool:
        (told,) = leases.report_all(session, [JobProgress(reader.lease, 1, POLICY.lease * 0)]).values()
        return told

    ask(session, 2)
    assert not is_followed()
    asked = ask(session, 1)
    assert is_followed()
    (follower,) = (each for each in claim_all(session, policy) if each.lease.job_id == asked.id)
    assert follower.is_awaited, "once the reader has ended, others wait until this one has said something"


def test_documents_are_read_once_and_slots_stay_full(session: Session) -> None:
    register_engine(session)
    documents = interleaved(session, 5, 6, length=60_000)
    course = drain_queue(session, sharing())
    assert sorted(course.order) == sorted(documents)
    assert sorted(documents[each] for each in course.alone) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("first", ["shorter first", "longer first"])
def test_questions_share_a_document_although_their_lengths_put_them_into_two_families(
    session: Session, first: str
) -> None:
    register_engine(session)
    tails = (20, 150) if first == "shorter first" else (150, 20)
    questions = {
        ask(session, document, length=36_350, tail=tail): document
        for tail in tails * 3
        for document in (1, 2, 3)
    }
    assert len({each.family for each in questions}) == 6
    documents = {each.id: document for each, document in questions.items()}
    course = drain_queue(session, sharing())
    assert sorted(course.order) == sorted(documents)
    assert sorted(documents[each] for each in course.alone) == [1, 2, 3]


@pytest.mark.parametrize("tails", [(20, 150), (150, 20)])
def test_a_question_of_another_family_follows_one_that_runs(session: Session, tails: tuple[int, int]) -> None:
    register_engine(session)
    policy = sharing()
    ask(session, 1, length=36_350, tail=tails[0])
    (reader,) = claim_all(session, policy)
    for number in range(POLICY.packing.window + 5):
        ask(session, 100 + number)
    follower = ask(session, 1, length=36_350, tail=tails[1])
    waiting = ask(session, 2, length=36_350, tail=tails[1])
    read(session, reader)
    before = loaded(session).budget.free_blocks
    started = claim_one(session, policy=policy).lease.job_id
    assert started == follower.id != waiting.id
    shared = 36_224 // CAPACITY.tokens_per_block  # the last length at which both are hashed
    held = session.scalars(select(Reservation).where(Reservation.job_id == follower.id)).one()
    assert held.shared_blocks == shared
    assert before - loaded(session).budget.free_blocks == held.blocks - shared


def test_an_engine_that_reuses_nothing_gets_the_order_of_before(session: Session) -> None:
    register_engine(session)
    documents = interleaved(session, 4, 4)
    for size in (500, 9_000, 70_000):
        documents[submit_one(session, spec(size)).id] = 0
    ids = sorted(documents)
    with_families = drain_queue(session, POLICY).order
    tails = {job_id: job.prompt_tokens for job_id in ids if (job := session.get_one(Job, job_id))}
    session.execute(text("DELETE FROM results"))
    session.execute(text("DELETE FROM webhook_events"))
    session.execute(text("DELETE FROM jobs"))
    session.expire_all()
    places = {submit_one(session, spec(tails[each])).id: place for place, each in enumerate(ids)}
    without_families = drain_queue(session, POLICY).order
    assert [ids.index(each) for each in with_families] == [places[each] for each in without_families]


def test_followers_far_behind_in_the_queue_are_found(session: Session) -> None:
    register_engine(session)
    policy = sharing()
    reader = ask(session, 1)
    assert claim_all(session, policy)[0].lease.job_id == reader.id
    for number in range(POLICY.packing.window + 5):
        ask(session, 100 + number)
    follower = ask(session, 1)
    read(session, running_claim(session, reader.id))
    assert follower.id in {each.lease.job_id for each in claim_all(session, policy)}


def test_shared_blocks_count_once_until_the_last_job_has_left(session: Session) -> None:
    register_engine(session)
    policy = sharing()
    interleaved(session, 1, 6, length=60_000)
    (reader,) = claim_all(session, policy)
    read(session, reader)
    followers = claim_all(session, policy)
    assert len(followers) == 3, "whole, two of them fit into the pool"
    load = loaded(session)
    shared = 59_904 // CAPACITY.tokens_per_block  # the last length at which both are hashed
    own = [each.blocks - shared for each in (reader, *followers)]
    assert CAPACITY.max_blocks - load.budget.free_blocks == sum(own) + shared
    end(session, replace(policy, replay=PrefixReplay()), reader)
    load = loaded(session)
    running = session.scalars(select(Reservation)).all()
    assert CAPACITY.max_blocks - load.budget.free_blocks == shared + sum(
        each.blocks - each.shared_blocks for each in running
    )


def test_an_engine_that_credits_nothing_starts_only_what_fits_whole(session: Session) -> None:
    register_engine(session)
    policy = sharing(is_credited=False)
    interleaved(session, 1, 6, length=90_000)
    (reader,) = claim_all(session, policy)
    read(session, reader)
    assert claim_all(session, policy) == []
    assert len(claim_all(session, replace(policy, replay=PrefixReplay(is_credited=True)))) == 3


def test_a_follower_pays_for_its_tail_only_unless_the_engine_read_it_all(session: Session) -> None:
    register_engine(session)
    policy = sharing()
    ask(session, 1)
    ask(session, 1)
    (reader,) = claim_all(session, policy)
    assert served_tokens.served(session, DEFAULT_TENANT, MODEL) == DOCUMENT + 60 + reader.output_tokens
    read(session, reader)
    (follower,) = claim_all(session, policy)
    tail = DOCUMENT + 60 - 29_952  # the last length at which both are hashed
    assert served_tokens.served(session, DEFAULT_TENANT, MODEL) == (
        DOCUMENT + 60 + reader.output_tokens + tail + follower.output_tokens
    )
    nothing_left = replace(output_of("x", follower.output_tokens), cached_tokens=0)
    assert ending.complete(session, follower.lease, nothing_left, FinishReason.STOP)
    reservations.close(session, follower.lease.lease_id)
    assert served_tokens.served(session, DEFAULT_TENANT, MODEL) == (
        2 * (DOCUMENT + 60) + reader.output_tokens + follower.output_tokens
    )


def test_tenants_share_computed_tokens_although_one_asks_about_documents(session: Session) -> None:
    register_engine(session)
    policy = sharing()
    asker, other = new_tenant(session), new_tenant(session)
    interleaved(session, 12, 10, tenant_id=asker)
    for _ in range(200):
        submit_one(session, spec(3_000), tenant_id=other)
    running = claim_all(session, policy)
    for _ in range(120):
        read(session, *running)
        first, *rest = [*running, *claim_all(session, policy)]
        running = [*rest, *end(session, policy, first)]
        mine, others = (served_tokens.served(session, each, MODEL) for each in (asker, other))
        assert abs(mine - others) <= 3 * DOCUMENT, "each is ahead by what it has just paid for, at most"
    assert min(mine, others) > 5 * DOCUMENT


def test_a_follower_overtakes_no_job_of_higher_priority_nor_an_interactive_one(session: Session) -> None:
    register_engine(session)
    policy = sharing()
    ask(session, 1)
    (reader,) = claim_all(session, policy)
    read(session, reader)
    follower = ask(session, 1)
    urgent = submit_one(session, spec(60_000, rank=1))
    asking = submit_one(session, spec(100, lane=Lane.INTERACTIVE))
    found = [claim_one(session, policy=policy).lease.job_id for _ in range(3)]
    assert found == [asking.id, urgent.id, follower.id]


def test_an_interactive_job_does_not_wait_for_a_reader(session: Session) -> None:
    register_engine(session)
    policy = sharing()
    ask(session, 1)
    (reader,) = claim_all(session, policy)
    asking = ask(session, 1, lane=Lane.INTERACTIVE)
    assert [each.lease.job_id for each in claim_all(session, policy)] == [asking.id]
    assert reader.lease.job_id != asking.id


def test_a_document_that_ended_jobs_left_is_followed_while_it_had_room(session: Session) -> None:
    register_engine(session)
    policy = sharing()
    ask(session, 1, length=60_000)
    end(session, policy, *claim_all(session, policy))
    ask(session, 2, length=60_000)
    follower = ask(session, 1, length=60_000)
    assert claim_one(session, policy=policy).lease.job_id == follower.id
    end(session, policy, running_claim(session, follower.id))
    end(session, policy, *map(partial(running_claim, session), running_ids(session)))
    submit_one(session, spec(95_000))
    end(session, policy, *claim_all(session, policy))
    first, _ = ask(session, 3, length=60_000), ask(session, 1, length=60_000)
    assert claim_one(session, policy=policy).lease.job_id == first.id, "95,000 tokens took its room"


def test_the_jobs_of_a_document_stay_on_one_engine_unless_another_is_idle(session: Session) -> None:
    register_engine(session)
    register_engine(session, OTHER)
    one, two = sharing(), sharing()
    first = [ask(session, 1) for _ in range(8)]
    (reader,) = claim_all(session, one)
    read(session, reader)
    busy = submit_one(session, spec(100, rank=1))
    assert claim_one(session, OTHER, two).lease.job_id == busy.id
    assert claim_all(session, two, OTHER) == [], "the other engine has the document"
    unrelated = ask(session, 2)
    assert [each.lease.job_id for each in claim_all(session, two, OTHER)] == [unrelated.id]
    running = [running_claim(session, each.id) for each in (busy, unrelated)]
    found = end(session, two, *running, engine=OTHER)
    assert len(found) == 1, "an idle engine takes one, and reads the document too"
    assert found[0].lease.job_id in {each.id for each in first}
    assert len(claim_all(session, one)) == 3


def test_a_job_is_not_left_to_an_engine_that_may_be_too_small_for_it(session: Session) -> None:
    small = replace(CAPACITY, max_input_len=40_000)
    register_engine(session, ENGINE, small)
    register_engine(session, OTHER)
    one, two = sharing(), sharing()
    ask(session, 1, length=36_400)
    (reader,) = claim_all(session, one)
    read(session, reader)
    submit_one(session, spec(100))
    assert len(claim_all(session, two, OTHER)) == 1
    large = ask(session, 1, length=42_000)
    assert large.family == session.get_one(Job, reader.lease.job_id).family
    assert claim_all(session, one) == []
    assert [each.lease.job_id for each in claim_all(session, two, OTHER)] == [large.id]


def test_a_claim_does_not_wait_for_a_reader_that_is_just_ending(sessions: sessionmaker[Session]) -> None:
    policy = sharing()
    with transaction(sessions) as session:
        register_engine(session)
        interleaved(session, 1, 2)
        (reader,) = claim_all(session, policy)
        read(session, reader)
    with sessions() as ending, transaction(sessions) as session:
        mine = select(Reservation).where(Reservation.lease_id == reader.lease.lease_id)
        ending.execute(mine.with_for_update())
        session.execute(text("SET LOCAL lock_timeout = '1s'"))
        assert len(claim_all(session, policy)) == 1
        booked = CAPACITY.max_blocks - loaded(session).budget.free_blocks
        assert booked == sum(session.scalars(select(Reservation.blocks))), "the reader counts whole"


def test_jobs_that_wait_for_a_reader_keep_no_other_from_an_idle_slot(session: Session) -> None:
    register_engine(session)
    policy = sharing()
    for _ in range(POLICY.packing.window + 5):
        ask(session, 1)
    last = ask(session, 2)
    started = [each.lease.job_id for each in claim_all(session, policy)]
    assert len(started) == 1
    assert [each.lease.job_id for each in claim_all(session, policy)] == [last.id]


def test_the_oldest_job_waits_no_longer_than_reading_a_document_again_takes(session: Session) -> None:
    register_engine(session)
    policy = sharing()
    ask(session, 1, length=60_000, max_tokens=2048)
    (running,) = claim_all(session, policy)
    oldest = submit_one(session, spec(60_500, max_tokens=2048))
    session.execute(
        update(Job).where(Job.id == oldest.id).values(created_at=Job.created_at - POLICY.lease * 100)
    )
    overtaken = 0
    running_now: Sequence[Claim] = [running]
    for _ in range(40):
        read(session, *running_now)
        for _ in range(4):
            ask(session, 1, length=60_000, max_tokens=2048)
        more = claim_all(session, policy)
        overtaken += len(more)
        running_now = [*running_now, *more]
        first, *running_now = running_now
        after = end(session, policy, first)
        running_now = [*running_now, *after]
        if oldest.id in {each.lease.job_id for each in (*more, *after)}:
            break
        overtaken += len(after)
    session.refresh(oldest)
    assert oldest.state == "running"
    assert overtaken <= 8


@pytest.mark.parametrize("credited", ["shared blocks credited", ""])
def test_a_large_question_is_not_overtaken_for_ever_by_small_ones_about_its_document(
    session: Session, credited: str
) -> None:
    register_engine(session)
    policy = unpredicted(sharing(is_credited=bool(credited)))
    ask(session, 1, max_tokens=8000)
    running = claim_all(session, policy)
    read(session, *running)
    head = ask(session, 1, max_tokens=95_000)
    aged(session, head)
    for _ in range(20):
        for _ in range(4):
            ask(session, 1, max_tokens=8000)
        running += claim_all(session, policy)
        read(session, *running)
        first, *running = running
        running += end(session, policy, first)
        if head.id in running_ids(session):
            return
    raise AssertionError("it never started")


def test_a_worker_that_starts_anew_knows_how_long_followers_overtook_a_job(session: Session) -> None:
    register_engine(session)
    policy = unpredicted(sharing())
    ask(session, 1)
    read(session, *claim_all(session, policy))
    head = ask(session, 2)
    aged(session, head)
    followers = {ask(session, 1, max_tokens=2000).id for _ in range(2)}
    assert claim_one(session, policy=policy).lease.job_id in followers
    assert claim_one(session, policy=unpredicted(sharing())).lease.job_id == head.id
