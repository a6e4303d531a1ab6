"""Work that serves all tenants: no row stops the others, no tenant waits for another one's backlog."""

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session, sessionmaker

from hostile.deadly_counter import count_one_by_one, exits_of_four
from jobs import lifecycle, turns
from jobs.database import database_now, transaction
from jobs.errors import UnavailableError
from jobs.models import DEFAULT_TENANT, Job, WebhookEvent
from jobs.models.turn import COUNTING
from jobs.preparation import Counting
from jobs.prompts.store import CountedPrompt
from jobs.settings import DatabaseSettings
from jobs.states import JobState
from jobs.turns import Turn
from jobs.turns.work import Interruption
from support import (
    CAPACITY,
    UnstorableCounter,
    WordCounter,
    eventually,
    new_tenant,
    prepare_all,
    refusing,
    runner_of,
    spec,
    submit_one,
)
from worker.turns import WorkRunner

LEASE = timedelta(seconds=30)


def claim(sessions: sessionmaker[Session], *, lease: timedelta = LEASE) -> Turn:
    with transaction(sessions) as session:
        turn = turns.claim(session, COUNTING, lease=lease)
    assert turn is not None, "no row waits"
    return turn


def job_of(sessions: sessionmaker[Session], job_id: UUID) -> Job:
    with sessions() as session:
        return session.get_one(Job, job_id)


def code_of(job: Job) -> object:
    return (job.error or {}).get("code")


def uncounted(sessions: sessionmaker[Session], *prompts: str, tenant_id: UUID = DEFAULT_TENANT) -> list[UUID]:
    with transaction(sessions) as session:
        return [submit_one(session, spec(None, prompt=each), tenant_id=tenant_id).id for each in prompts]


def make_due(sessions: sessionmaker[Session]) -> None:
    """Leases have run out, and pauses are over."""
    with transaction(sessions) as session:
        now = database_now(session)
        held = update(Job).where(Job.lease_id.is_not(None))
        session.execute(held.values(lease_expires_at=now))
        session.execute(update(Job).where(Job.run_after.is_not(None)).values(run_after=now))


def test_a_prompt_that_kills_its_workers_fails_after_three_and_no_other_waits_for_it(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    (poisoned,) = uncounted(sessions, "deadly")
    others = uncounted(sessions, "one", "two")
    exits = exits_of_four(count_one_by_one, database_settings)
    assert exits == [9, 9, 9, 0], "the third death is the last"
    job = job_of(sessions, poisoned)
    assert (job.state, code_of(job), job.attempt) == ("failed", "prompt_uncountable", 0)
    assert {job_of(sessions, each).state for each in others} == {"queued"}
    with sessions() as session:
        assert session.scalars(select(WebhookEvent.type)).all() == ["job.failed"]


class ShortHostCounter(WordCounter):
    """Counts while the host has no process or open file left for it."""

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        raise OSError(errno.EMFILE, canonical, str(limit))


def test_a_shortage_of_the_host_spends_an_attempt_and_no_job(sessions: sessionmaker[Session]) -> None:
    (job_id,) = uncounted(sessions, "a b")
    assert prepare_all(sessions, ShortHostCounter()) == []
    job = job_of(sessions, job_id)
    assert (job.state, job.num_preparations) == ("preparing", 1)
    make_due(sessions)
    assert [each.state for each in prepare_all(sessions)] == ["queued"]


def test_a_failure_backs_off_and_the_third_is_the_last(sessions: sessionmaker[Session]) -> None:
    (bad,) = uncounted(sessions, "unstorable")
    pauses = []
    for attempt in range(1, 4):
        ended = prepare_all(sessions, UnstorableCounter())
        assert [each.id for each in ended] == ([] if attempt < 3 else [bad])
        job = job_of(sessions, bad)
        assert (job.num_preparations, job.lease_id) == (attempt, None)
        if job.run_after is not None:
            with sessions() as session:
                pauses.append(job.run_after - database_now(session))
        make_due(sessions)
    assert pauses[1] > 1.5 * pauses[0] > timedelta(0)
    assert (job.state, code_of(job)) == ("failed", "prompt_uncountable")


def test_tenants_take_turns_whatever_waits_before_them(sessions: sessionmaker[Session]) -> None:
    first = uncounted(sessions, *(f"a{number}" for number in range(20)))
    with transaction(sessions) as session:
        other = new_tenant(session)
    (late,) = uncounted(sessions, "b", tenant_id=other)
    assert [job.id for job in prepare_all(sessions)][:3] in (
        [first[0], late, first[1]],
        [late, first[0], first[1]],
    )
    uncounted(sessions, "a", "aa")
    uncounted(sessions, "b", "bb", tenant_id=other)
    served = [job.tenant_id for job in prepare_all(sessions)]
    assert served[0] != served[1], "whoever was served longest ago is next"


def test_the_tenant_with_the_fewest_under_way_is_next(sessions: sessionmaker[Session]) -> None:
    uncounted(sessions, "a", "aa", "aaa")
    with transaction(sessions) as session:
        other = new_tenant(session)
    uncounted(sessions, "b", "bb", "bbb", tenant_id=other)
    held = [claim(sessions) for _ in range(4)]
    assert [each.tenant_id for each in held].count(other) == 2
    with transaction(sessions) as session:
        for each in held:
            if each.tenant_id == other:
                lifecycle.cancel(session, each.row_id, tenant_id=other)
    assert [claim(sessions).tenant_id for _ in range(1)] == [other]


@pytest.fixture
def crowded(sessions: sessionmaker[Session]) -> Iterator[Session]:
    """A session in which one tenant has 20,000 prompts waiting, and 20,000 put off; another one has one."""
    (template,) = uncounted(sessions, "template")
    columns = "state, task, model, max_tokens, text_id, created_at"
    with sessions() as session:
        other = new_tenant(session)
        fill = f"""
            INSERT INTO jobs (id, tenant_id, run_after, {columns})
            SELECT gen_random_uuid(), :tenant_id, :later, {columns}
            FROM jobs, generate_series(1, :num) WHERE id = :template
        """  # noqa: S608  # our own names
        later = database_now(session) + timedelta(hours=1)
        for tenant_id, run_after, num in ((DEFAULT_TENANT, None, 20_000), (DEFAULT_TENANT, later, 20_000)):
            values = {"tenant_id": tenant_id, "later": run_after, "num": num, "template": template}
            session.execute(text(fill), values)
        submit_one(session, spec(None, prompt="alone"), tenant_id=other)
        session.execute(text("ANALYZE jobs"))
        yield session


def rows_read(session: Session) -> int:
    """Rows of jobs that this transaction has read so far."""
    found = "seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'jobs'"
    return session.scalars(text(f"SELECT {found}")).one()


def test_a_claim_reads_a_handful_of_rows_however_many_wait(crowded: Session) -> None:
    before = rows_read(crowded)
    claimed = [turns.claim(crowded, COUNTING, lease=LEASE) for _ in range(3)]
    assert len({each.tenant_id for each in claimed if each}) == 2
    assert 0 < rows_read(crowded) - before < 100


def test_a_result_that_comes_after_the_lease_is_dropped(sessions: sessionmaker[Session]) -> None:
    (job_id,) = uncounted(sessions, "one two three")
    stale = claim(sessions)
    make_due(sessions)
    work = Counting(WordCounter(), CAPACITY)
    fresh = claim(sessions)
    assert (fresh.row_id, fresh.attempt) == (job_id, 2)
    assert work.do(sessions, stale, Interruption()) is None
    assert job_of(sessions, job_id).state == "preparing"
    with transaction(sessions) as session:
        assert not turns.back_off(session, stale)
        assert not turns.release(session, stale)
        assert turns.renew(session, [stale, fresh], lease=LEASE) == {fresh.lease_id}
    counted = work.do(sessions, fresh, Interruption())
    assert counted is not None
    assert (counted.state, counted.lease_id, counted.prompt_tokens) == ("queued", None, 3)


def test_a_row_that_somebody_changes_keeps_its_lease_and_delays_no_other(
    sessions: sessionmaker[Session],
) -> None:
    uncounted(sessions, "a", "b")
    held = [claim(sessions) for _ in range(2)]
    before = {each.row_id: job_of(sessions, each.row_id).lease_expires_at for each in held}
    with transaction(sessions) as other:
        other.execute(select(Job.id).where(Job.id == held[0].row_id).with_for_update())
        with transaction(sessions) as session:
            session.execute(text("SET LOCAL lock_timeout = '500ms'"))
            kept = turns.renew(session, held, lease=timedelta(seconds=60))
    assert kept == {each.lease_id for each in held}
    moved = [job_of(sessions, each.row_id).lease_expires_at != before[each.row_id] for each in held]
    assert moved == [False, True]


def test_rescue_leaves_prompts_that_are_being_counted_alone(sessions: sessionmaker[Session]) -> None:
    (job_id,) = uncounted(sessions, "a")
    claim(sessions)
    make_due(sessions)
    with transaction(sessions) as session:
        assert lifecycle.rescue(session, now=database_now(session), max_rescues=2) == []
    job = job_of(sessions, job_id)
    assert (job.state, job.num_rescues, job.num_preparations) == ("preparing", 0, 1)


@pytest.mark.parametrize("verb", ["cancel", "expire"])
def test_a_prompt_that_is_being_counted_ends_at_once(sessions: sessionmaker[Session], verb: str) -> None:
    with transaction(sessions) as session:
        job_id = submit_one(session, spec(None, window=timedelta(microseconds=1))).id
    turn = claim(sessions)
    with transaction(sessions) as session:
        if verb == "cancel":
            lifecycle.cancel(session, job_id, tenant_id=DEFAULT_TENANT)
        else:
            assert lifecycle.expire(session, now=database_now(session)) == 1
    job = job_of(sessions, job_id)
    assert (job.state, job.lease_id) == ({"cancel": "cancelled", "expire": "expired"}[verb], None)
    assert Counting(WordCounter(), CAPACITY).do(sessions, turn, Interruption()) is None


class CountingStop(WordCounter):
    """The process is told to stop while it counts, and gives back what it holds."""

    def __init__(self) -> None:
        self.runner: WorkRunner | None = None

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        assert self.runner is not None
        self.runner.interrupt()
        self.runner.give_back()
        return super().count_prompt(canonical, limit=limit)


def test_a_stop_gives_the_attempt_back_and_drops_the_count(sessions: sessionmaker[Session]) -> None:
    (job_id,) = uncounted(sessions, "a")
    counter = CountingStop()
    counter.runner = runner_of(sessions)
    taken = counter.runner.run_next(Counting(counter, CAPACITY))
    assert taken is not None
    assert taken.result is None
    job = job_of(sessions, job_id)
    assert (job.state, job.num_preparations, job.lease_id, job.run_after) == ("preparing", 0, None, None)


class LosingCounter(WordCounter):
    """Counts until the lease of what it counts has been renewed by nobody and taken by another worker."""

    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self.sessions = sessions
        self.runner: WorkRunner | None = None

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        assert self.runner is not None
        make_due(self.sessions)
        self.runner.renew()
        return super().count_prompt(canonical, limit=limit)


def test_a_lost_lease_is_noticed_and_the_row_goes_to_the_next(sessions: sessionmaker[Session]) -> None:
    (job_id,) = uncounted(sessions, "a b")
    counter = LosingCounter(sessions)
    counter.runner = runner_of(sessions)
    work = Counting(counter, CAPACITY)
    counter.runner.run_next(work)
    job = eventually(lambda: prepare_all(sessions) or [job_of(sessions, job_id)])[0]
    assert (job.state, job.prompt_tokens) == ("queued", 2)


def last_expiry(session: Session) -> datetime:
    found = session.scalars(select(func.max(Job.lease_expires_at))).one()
    assert found is not None
    return found


def test_the_keeper_renews_what_is_under_way(sessions: sessionmaker[Session]) -> None:
    class Renewed(WordCounter):
        runner: WorkRunner

        def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
            with sessions() as session:
                before = last_expiry(session)
            self.runner.renew()
            with sessions() as session:
                after = last_expiry(session)
            assert after > before
            return super().count_prompt(canonical, limit=limit)

    (job_id,) = uncounted(sessions, "a")
    counter = Renewed()
    counter.runner = runner_of(sessions)
    counter.runner.run_next(Counting(counter, CAPACITY))
    assert job_of(sessions, job_id).state == JobState.QUEUED


class Stubborn(Counting):
    """Cannot even end a row that it gives up."""

    def do(self, sessions: sessionmaker[Session], turn: Turn, watch: Interruption) -> Job | None:
        with sessions() as session:
            job = session.get_one(Job, turn.row_id)
        if job.custom_id == "stubborn":
            raise RuntimeError
        return super().do(sessions, turn, watch)

    def give_up(self, session: Session, turn: Turn) -> Job | None:
        raise ZeroDivisionError((session, turn))


def test_a_row_that_cannot_even_be_failed_stops_no_other(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        stubborn = submit_one(session, spec(None, custom_id="stubborn")).id
        session.execute(update(Job).values(num_preparations=2))
        good = submit_one(session, spec(None)).id
    work = Stubborn(WordCounter(), CAPACITY)
    for _ in range(2):
        runner_of(sessions).run_some(work, limit=10)
        make_due(sessions)
    assert job_of(sessions, good).state == "queued"
    assert (job_of(sessions, stubborn).state, job_of(sessions, stubborn).num_preparations) == ("preparing", 4)


class PartlyRefused(Counting):
    """Its store refuses what some rows need."""

    def do(self, sessions: sessionmaker[Session], turn: Turn, watch: Interruption) -> Job | None:
        with sessions() as session:
            job = session.get_one(Job, turn.row_id)
        if job.custom_id == "refused":
            raise UnavailableError
        return super().do(sessions, turn, watch)


def refused(sessions: sessionmaker[Session], num: int) -> list[UUID]:
    with transaction(sessions) as session:
        return [submit_one(session, spec(None, custom_id="refused")).id for _ in range(num)]


def test_a_row_that_is_refused_ends_no_round_and_waits_longer_each_time(
    sessions: sessionmaker[Session],
) -> None:
    (bad,) = refused(sessions, 1)
    runner, work, pauses = runner_of(sessions), PartlyRefused(WordCounter(), CAPACITY), []
    for number in range(6):
        (good,) = uncounted(sessions, f"good {number}")
        taken = runner.run_some(work, limit=10)
        assert [each.result.id for each in taken if each.result] == [good]
        assert len(taken) == 2
        job = job_of(sessions, bad)
        assert job.run_after is not None
        assert (job.state, job.num_preparations, job.lease_id) == ("preparing", 0, None)
        with sessions() as session:
            pauses.append(round((job.run_after - database_now(session)) / timedelta(seconds=30)))
        make_due(sessions)
    assert pauses == [1, 2, 4, 8, 16, 16]


def test_a_round_ends_when_one_row_after_the_other_is_refused(sessions: sessionmaker[Session]) -> None:
    ids = refused(sessions, 5)
    runner, work = runner_of(sessions), PartlyRefused(WordCounter(), CAPACITY)
    with pytest.raises(UnavailableError):
        runner.run_some(work, limit=10)
    assert [job_of(sessions, each).run_after is not None for each in ids] == [True] * 3 + [False] * 2


def test_a_full_disk_costs_no_row_its_attempts(sessions: sessionmaker[Session]) -> None:
    (job_id,) = uncounted(sessions, "a b")
    work = Counting(WordCounter(), CAPACITY)
    counted = "BEFORE UPDATE ON jobs FOR EACH ROW WHEN (NEW.state = 'queued')"
    with refusing(sessions, counted, code="disk_full"):
        for _ in range(COUNTING.max_attempts + 1):
            runner_of(sessions).run_some(work, limit=10)
            job = job_of(sessions, job_id)
            assert (job.state, job.num_preparations, job.lease_id) == ("preparing", 0, None)
            make_due(sessions)
    runner_of(sessions).run_some(work, limit=10)
    assert job_of(sessions, job_id).state == "queued"


class Calling(WordCounter):
    """Does something while it counts."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        self.call()
        return super().count_prompt(canonical, limit=limit)


class OfLostTable(Counting):
    """Its table is lost after a row was taken."""

    def do(self, sessions: sessionmaker[Session], turn: Turn, watch: Interruption) -> Job | None:  # noqa: ARG002
        with transaction(sessions) as session:
            session.execute(text("DROP TABLE lost_jobs"))
        self.counter.count_prompt("")
        return None


def test_a_kind_whose_leases_cannot_be_renewed_keeps_no_other_from_it(
    sessions: sessionmaker[Session],
) -> None:
    uncounted(sessions, "a")
    with transaction(sessions) as session:
        session.execute(text("CREATE TABLE lost_jobs AS TABLE jobs"))
    runner = runner_of(sessions)
    moved = []

    def renew() -> None:
        with sessions() as session:
            before = last_expiry(session)
        with pytest.raises(ProgrammingError):
            runner.renew()
        with sessions() as session:
            moved.append(last_expiry(session) > before)

    def count_inside() -> None:
        runner.run_next(Counting(Calling(renew), CAPACITY))

    lost = replace(COUNTING, name="lost", table="lost_jobs")
    runner.run_next(OfLostTable(Calling(count_inside), CAPACITY, kind=lost))  # held first, so renewed first
    assert moved == [True]
