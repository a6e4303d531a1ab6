"""Short prompts of several jobs, counted in one call: exact, fair, and each fails alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from hostile.deadly_counter import count_in_sets, exits_of_four
from jobs import lifecycle, turns
from jobs.database import transaction
from jobs.ids import uuid7
from jobs.models import DEFAULT_TENANT, Job, PromptText, Tenant
from jobs.models.turn import COUNTING
from jobs.preparation import Counting
from jobs.prompts import prefixes, store
from jobs.prompts.counter import PromptCounter
from jobs.prompts.encoding import SHORT_CHARS
from jobs.prompts.messages import canonical_text
from jobs.prompts.store import CountedPrompt, NewText, SetCounter
from jobs.prompts.tokenizer import Tokenizer, unpack_ids
from jobs.settings import DatabaseSettings
from jobs.turns import Room
from support import CAPACITY, WordCounter, runner_of, spec, submit_one
from worker.turns import SetResult

Sessions = sessionmaker[Session]


class SetsOfWords(WordCounter):
    """Remembers what it counted together and alone; `poison` is an error in both."""

    def __init__(self, during: Callable[[], object] = lambda: None) -> None:
        self.sets: list[int] = []
        self.alone: list[str] = []
        self._during = during

    def count_together(self, canonicals: Sequence[str]) -> list[CountedPrompt | None]:
        self.sets.append(len(canonicals))
        self._during()
        return [
            None if "poison" in each else super(SetsOfWords, self).count_prompt(each) for each in canonicals
        ]

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        self.alone.append(canonical)
        if "poison" in canonical:
            raise ValueError(canonical)
        return super().count_prompt(canonical, limit=limit)


def uncounted(sessions: Sessions, *prompts: str, tenant_id: UUID = DEFAULT_TENANT) -> list[UUID]:
    with transaction(sessions) as session:
        return [submit_one(session, spec(None, prompt=each), tenant_id=tenant_id).id for each in prompts]


def count_set(sessions: Sessions, counter: SetCounter) -> SetResult[Job] | None:
    return runner_of(sessions).run_set(Counting(counter, CAPACITY))


def rows(sessions: Sessions, job_ids: Sequence[UUID]) -> dict[UUID, Job]:
    with sessions() as session:
        return {job.id: job for job in session.scalars(select(Job).where(Job.id.in_(job_ids)))}


def test_short_prompts_are_counted_in_one_call_and_their_jobs_queued(sessions: Sessions) -> None:
    job_ids = uncounted(sessions, "a", "a b", "a b c", "a b")
    counter = SetsOfWords()
    assert count_set(sessions, counter) == SetResult(4, [])
    assert (counter.sets, counter.alone) == ([3], []), "equal texts once"
    found = rows(sessions, job_ids)
    assert [found[each].prompt_tokens for each in job_ids] == [1, 2, 3, 2]
    for job in found.values():
        assert (job.state, job.lease_id, job.lease_expires_at, job.num_preparations) == (
            "queued",
            None,
            None,
            1,
        )
        assert job.reserved_tokens == (job.prompt_tokens or 0) + job.max_tokens
    with sessions() as session:
        texts = session.scalars(
            select(PromptText).where(PromptText.id.in_(j.text_id for j in found.values()))
        )
        assert {(each.num_tokens, each.fingerprint) for each in texts} == {
            (num, counter.fingerprint) for num in (1, 2, 3)
        }
    assert count_set(sessions, counter) is None


def test_a_text_whose_ids_are_stored_is_not_counted_again(sessions: Sessions) -> None:
    uncounted(sessions, "a b", "c")
    count_set(sessions, SetsOfWords())
    job_ids = uncounted(sessions, "a b", "d")
    counter = SetsOfWords()
    count_set(sessions, counter)
    assert counter.sets == [1]
    found = rows(sessions, job_ids)
    assert [found[job_id].prompt_tokens for job_id in job_ids] == [2, 1]


def test_prefixes_are_kept_whichever_way_a_prompt_is_counted(sessions: Sessions) -> None:
    counter = PromptCounter(Tokenizer.load())
    at_once, in_a_set, alone = (canonical_text(f"{word} " * 700) for word in ("one", "two", "six"))
    other = uuid7()
    with transaction(sessions) as session:
        session.add(Tenant(id=other, name=f"other-{other}"))
    for tenant_id in (DEFAULT_TENANT, other):
        with transaction(sessions) as session:
            counted_now = replace(spec(), text=NewText(at_once, counter.count_prompt(at_once)))
            submit_one(session, counted_now, tenant_id=tenant_id)
        uncounted(sessions, in_a_set, tenant_id=tenant_id)
        while count_set(sessions, counter):
            pass
        with transaction(sessions) as session:
            job = submit_one(session, spec(None, prompt=alone), tenant_id=tenant_id)
            store.counted(session, store.load(session, job.text_id or uuid7()), counter)
    with sessions() as session:
        texts = session.scalars(select(PromptText)).all()
    assert len(texts) == 6
    for text in texts:
        found = prefixes.digests(unpack_ids(text.token_ids or b""))
        assert text.prefixes == prefixes.keyed(found, text.tenant_id)
        kept = prefixes.StoredPrefixes(text.prefixes, text.num_tokens or 0)
        assert prefixes.shared_tokens(kept, kept) == 640
    assert len({text.prefixes for text in texts}) == 6, "no tenant sees what another one has"


def test_a_text_that_is_short_only_when_compressed_is_not_read_into_a_set(sessions: Sessions) -> None:
    uncounted(sessions, "a", "a" * 1_000_000)
    with transaction(sessions) as session:
        found = store.read(session, session.scalars(select(PromptText.id)).all(), max_bytes=SHORT_CHARS)
    assert [each.canonical for each in found.values()] == ["a"]


def test_a_prompt_that_cannot_be_counted_fails_alone(sessions: Sessions) -> None:
    bad, *others = uncounted(sessions, "poison", "one", "two")
    counter = SetsOfWords()
    counted = count_set(sessions, counter)
    assert counted is not None
    assert (counted.num_together, [job.id for job in counted.others]) == (2, [bad])
    assert counter.alone == ["poison"]
    found = rows(sessions, [bad, *others])
    assert (found[bad].state, (found[bad].error or {})["code"]) == ("failed", "invalid_prompt")
    assert {found[each].state for each in others} == {"queued"}


def test_a_job_too_long_for_every_engine_fails_alone(sessions: Sessions) -> None:
    with transaction(sessions) as session:
        big = submit_one(session, spec(None, prompt="too big", max_tokens=131_071)).id
    (small,) = uncounted(sessions, "small")
    assert count_set(sessions, SetsOfWords()) is not None
    found = rows(sessions, [big, small])
    assert (found[big].error or {})["code"] == "context_length_exceeded"
    assert found[small].state == "queued"


class Panic(BaseException):
    """What a tokenizer written in Rust raises."""


def test_a_tokenizer_that_panics_over_a_set_counts_each_alone(sessions: Sessions) -> None:
    def panic() -> None:
        raise Panic

    job_ids = uncounted(sessions, "one", "two")
    counter = SetsOfWords(panic)
    counted = count_set(sessions, counter)
    assert counted is not None
    assert (counted.num_together, len(counted.others), len(counter.alone)) == (0, 2, 2)
    assert {job.state for job in rows(sessions, job_ids).values()} == {"queued"}


def test_a_job_cancelled_while_its_set_is_counted_stays_cancelled(sessions: Sessions) -> None:
    gone, kept = uncounted(sessions, "one", "two")

    def cancel() -> None:
        with transaction(sessions) as session:
            lifecycle.cancel(session, gone, tenant_id=DEFAULT_TENANT)

    assert count_set(sessions, SetsOfWords(cancel)) == SetResult(2, []), "nothing is left to do for it"
    found = rows(sessions, [gone, kept])
    assert (found[gone].state, found[kept].state) == ("cancelled", "queued")


def test_a_set_whose_leases_ran_out_writes_nothing(sessions: Sessions) -> None:
    job_ids = uncounted(sessions, "one", "two")
    other = uuid7()

    def lose() -> None:
        with transaction(sessions) as session:
            session.execute(update(Job).where(Job.id.in_(job_ids)).values(lease_id=other))

    count_set(sessions, SetsOfWords(lose))
    assert {(job.state, job.lease_id) for job in rows(sessions, job_ids).values()} == {("preparing", other)}


def test_a_prompt_that_kills_its_workers_costs_the_others_of_its_set_one_attempt(
    sessions: Sessions, database_settings: DatabaseSettings
) -> None:
    bad, *others = uncounted(sessions, "deadly", "one", "two")
    exits = exits_of_four(count_in_sets, database_settings)
    assert exits == [9, 9, 9, 0], "the third death is the last"
    found = rows(sessions, [bad, *others])
    assert (found[bad].state, (found[bad].error or {})["code"]) == ("failed", "prompt_uncountable")
    assert {(found[each].state, found[each].num_preparations) for each in others} == {("queued", 2)}


def taken(sessions: Sessions, room: Room) -> list[tuple[UUID, UUID]]:
    with transaction(sessions) as session:
        claimed = turns.claim_set(session, COUNTING, room, lease=timedelta(seconds=30))
    return [(each.tenant_id, each.row_id) for each in claimed]


def test_tenants_share_a_set_and_a_backlog_fills_no_more_than_its_part(sessions: Sessions) -> None:
    backlog = uncounted(sessions, *(f"prompt {number}" for number in range(20)))
    with transaction(sessions) as session:
        tenant = Tenant(id=uuid7(), name=f"other {uuid7()}")
        session.add(tenant)
    other = uncounted(sessions, "mine", tenant_id=tenant.id)
    found = taken(sessions, Room(num=10, size=2**18, small=2**14))
    assert (tenant.id, other[0]) in found
    assert [row for owner, row in found if owner == DEFAULT_TENANT] == backlog[:5], "oldest first"


def test_a_set_ends_before_a_large_row_which_is_taken_alone(sessions: Sessions) -> None:
    small, large, last = uncounted(sessions, "one", "x" * 3000, "two")
    room = Room(num=10, size=2**18, small=2000)
    assert [[row for _, row in taken(sessions, room)] for _ in range(4)] == [[small], [large], [last], []]


def test_a_set_is_bounded_by_its_size(sessions: Sessions) -> None:
    job_ids = uncounted(sessions, *(f"{number} " + "x" * 700 for number in range(5)))
    room = Room(num=10, size=2000, small=2000)  # each may take 256 more for its chat template
    assert [len(taken(sessions, room)) for _ in range(4)] == [2, 2, 1, 0]
    assert all(job.lease_id for job in rows(sessions, job_ids).values())
