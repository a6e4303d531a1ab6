"""Whatever jobs go through, their tenants' quotas and usage say exactly what is there."""

import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, timedelta
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from sqlalchemy import Engine, event, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, sessionmaker

import ending
from api.runtime.quotas import QuotaCache
from claiming import claims
from jobs import deletion, files, fitting, lifecycle, submission
from jobs.database import database_now, statements
from jobs.database.statements import Query, Statement
from jobs.engines import reservations
from jobs.errors import LimitError, StorageQuotaError
from jobs.files.storage import RowStore
from jobs.models import DEFAULT_TENANT, Job, QuotaAllowance, Tenant, UsageDay
from jobs.scheduling.sizing import ClaimPolicy
from jobs.states import TERMINAL, FinishReason, StopReason
from jobs.states.file import FileState
from jobs.submission import Submitter
from jobs.tenants import allowances, key_quotas, quotas, stored_bytes, usage
from jobs.tenants.key_quotas import KeyQuota
from jobs.tenants.quotas import QuotaUsage, TenantLimits
from support import (
    ERROR,
    LATER,
    SMALL,
    JobMachine,
    empty_database,
    output_of,
    places,
    register_engine,
    run_on,
    spec,
)

ENGINE = "engine-a"
TERMS = ClaimPolicy(lease=timedelta(seconds=60), max_rescues=1)
LIMITS = TenantLimits(max_enqueued_tokens=4000, max_jobs=8, max_requests=1)
DAY = timedelta(days=1)
OTHER_TENANT = UUID("00000000-0000-7000-8000-000000000002")
TENANTS = (DEFAULT_TENANT, OTHER_TENANT)
# Each is of both tenants: only its number matters. Their quotas together are more than a tenant's.
KEYS = (UUID(int=1), UUID(int=2))
KEY_LIMITS = TenantLimits(max_enqueued_tokens=2500, max_jobs=5, max_requests=1)
# What a tenant keeps, summed over the rows themselves.
KEPT = """
    SELECT coalesce(sum(size), 0) FROM (
        SELECT octet_length(body) + coalesce(octet_length(token_ids), 0)
            + coalesce(octet_length(prefixes), 0) AS size, tenant_id FROM texts
        UNION ALL SELECT coalesce(octet_length(content), num_bytes), tenant_id FROM file_parts
        UNION ALL SELECT octet_length(body), tenant_id FROM document_texts
        UNION ALL SELECT octet_length(output) + octet_length(output_ids)
            + coalesce(octet_length(reasoning), 0), tenant_id FROM results JOIN jobs ON jobs.id = job_id
    ) AS kept WHERE tenant_id = :tenant_id
"""


class Life(JobMachine):
    """Completions, failures, cancels, expiries, crashes and deletions of two tenants' jobs in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: Counter[tuple[UUID, str]] = Counter()
        self.known: set[UUID] = set()
        with self.sessions.begin() as session:
            empty_database(session)
            session.execute(
                insert(Tenant).values(id=OTHER_TENANT, name=f"other {OTHER_TENANT}").on_conflict_do_nothing()
            )
            register_engine(session, ENGINE, SMALL)

    @rule(
        sizes=st.lists(st.sampled_from([None, 10, 400, 1000, 1001]), min_size=1, max_size=6),
        max_tokens=st.integers(1, 300),
        tenant_id=st.sampled_from(TENANTS),
        key_id=st.sampled_from([None, *KEYS]),
    )
    def submit(self, sizes: list[int | None], max_tokens: int, tenant_id: UUID, key_id: UUID | None) -> None:
        given = [spec(size, max_tokens=max_tokens, window=timedelta(minutes=4)) for size in sizes]
        of_key = KeyQuota(key_id, tenant_id, KEY_LIMITS) if key_id else None

        def admit(session: Session, more: QuotaUsage, then: Sequence[Query]) -> None:
            if of_key:
                key_quotas.admit(session, of_key, more)
            quotas.admit(session, tenant_id, more, limits=LIMITS)
            statements.fetch_all(session, then)

        with self.sessions() as session:
            before = quotas.current_usage(session, tenant_id), held_by_keys(session, tenant_id)
            try:
                by = Submitter(tenant_id, SMALL, admit, api_key_id=key_id, key_quota=of_key)
                submission.submit(session, given, by)
                session.commit()
            except LimitError:
                session.rollback()
                after = quotas.current_usage(session, tenant_id), held_by_keys(session, tenant_id)
                assert after == before, "a refused request takes nothing"

    @rule()
    def fill(self) -> None:
        while True:
            with self.sessions.begin() as session:
                claimed = claims.claim(session, ENGINE, TERMS)
            if claimed is None:
                return
            self.leases.append(claimed.lease)

    @rule(
        place=places,
        verb=st.sampled_from(["complete", "fail", "cancel", "expire", "release", "retry", "recount", "lose"]),
    )
    def write(self, place: int, verb: str) -> None:
        if not self.leases:
            return
        lease = self.leases[place % len(self.leases)]
        with self.sessions.begin() as session:
            {
                "complete": lambda: ending.complete(session, lease, output_of("x", 1), FinishReason.STOP),
                "fail": lambda: ending.fail(session, lease, ERROR, output_of("part", 1)),
                "cancel": lambda: ending.finish_stopped(session, lease, StopReason.CANCEL, None),
                "expire": lambda: ending.finish_stopped(session, lease, StopReason.EXPIRE, None),
                "release": lambda: ending.release(session, lease, output_of("part", 1)),
                "retry": lambda: ending.retry(
                    session, lease, ERROR, max_attempts=2, backoff=timedelta(microseconds=1)
                ),
                "recount": lambda: ending.recount(session, lease, prompt_tokens=17),
                "lose": lambda: ending.release_after_engine_loss(
                    session, lease, max_rescues=TERMS.max_rescues
                ),
            }[verb]()
            reservations.close(session, lease.lease_id)

    @rule()
    def workers_crash(self) -> None:
        with self.sessions.begin() as session:
            lifecycle.rescue(session, now=database_now(session) + LATER, max_rescues=TERMS.max_rescues)
            rows = reservations.draining(session, ENGINE)
            reservations.drained(session, [row.lease_id for row in rows])

    @rule(place=places, tenant_id=st.sampled_from(TENANTS))
    def cancel(self, place: int, tenant_id: UUID) -> None:
        with self.sessions.begin() as session:
            mine = session.scalars(select(Job.id).where(Job.tenant_id == tenant_id).order_by(Job.id)).all()
            if mine:
                lifecycle.cancel(session, mine[place % len(mine)], tenant_id=tenant_id)

    @rule()
    def a_smaller_engine_comes(self) -> None:
        with self.sessions.begin() as session:
            fitting.reject_misfits(session)

    @rule(place=places)
    def delete(self, place: int) -> None:
        self.note_ends()
        with self.sessions.begin() as session:
            rows = session.execute(select(Job.id, Job.tenant_id).order_by(Job.id)).all()
            if rows:
                job_id, tenant_id = rows[place % len(rows)]
                deletion.remove(session, job_id, tenant_id=tenant_id)

    @rule()
    def prune(self) -> None:
        self.note_ends()
        with self.sessions.begin() as session:
            deletion.prune_jobs(session, before=database_now(session), limit=3)

    @rule(tenant_id=st.sampled_from(TENANTS), sizes=st.lists(st.integers(1, 300), max_size=3))
    def write_a_file(self, tenant_id: UUID, sizes: list[int]) -> None:
        with self.sessions.begin() as session:
            made = files.create(
                session, tenant_id=tenant_id, purpose=files.OUTPUT, filename="a", state=FileState.GROWING
            )
            for size in sizes:
                files.append(session, made, [random.randbytes(size)], RowStore())  # noqa: S311  # no secret
            files.complete(session, made.id, now=database_now(session), lifetime=DAY)

    @rule()
    def files_go(self) -> None:
        with self.sessions.begin() as session:
            now = database_now(session) + 2 * DAY
            files.expire(session, now=now, limit=2)
            files.prune(session, RowStore(), now=now + DAY)

    @rule()
    def add_up(self) -> None:
        with self.sessions.begin() as session:
            usage.add_up(session, limit=3)
            stored_bytes.add_up(session, limit=3)

    @invariant()
    def what_is_stored_is_what_is_there(self) -> None:
        with self.sessions() as session:
            for tenant_id in TENANTS:
                kept = session.scalar(text(KEPT), {"tenant_id": tenant_id})
                assert stored_bytes.read(session, tenant_id) == kept

    def note_ends(self) -> None:
        with self.sessions() as session:
            rows = session.execute(
                select(Job.id, Job.tenant_id, Job.state).where(Job.state.in_(sorted(TERMINAL)))
            )
            for job_id, tenant_id, state in rows:
                if job_id not in self.known:
                    self.known.add(job_id)
                    self.ended[tenant_id, state] += 1

    @invariant()
    def what_is_held_is_what_is_unfinished(self) -> None:
        with self.sessions() as session:
            for tenant_id in TENANTS:
                found = quotas.current_usage(session, tenant_id)
                rows = session.execute(
                    select(Job.prompt_tokens, Job.max_tokens, Job.reserved_tokens).where(
                        Job.tenant_id == tenant_id, Job.state.not_in(sorted(TERMINAL))
                    )
                ).all()
                assert found == QuotaUsage(sum(row.reserved_tokens for row in rows), len(rows))
                assert found.jobs <= LIMITS.max_jobs
                for row in rows:
                    if row.prompt_tokens is not None:
                        assert row.reserved_tokens == row.prompt_tokens + row.max_tokens

    @invariant()
    def what_keys_hold_is_what_of_theirs_is_unfinished(self) -> None:
        with self.sessions() as session:
            for tenant_id in TENANTS:
                for key_id, found in held_by_keys(session, tenant_id).items():
                    rows = session.scalars(
                        select(Job.reserved_tokens).where(
                            Job.tenant_id == tenant_id,
                            Job.api_key_id == key_id,
                            Job.state.not_in(sorted(TERMINAL)),
                        )
                    ).all()
                    assert found == QuotaUsage(sum(rows), len(rows))
                    assert found.jobs <= KEY_LIMITS.max_jobs

    @invariant()
    def usage_counts_every_end_once(self) -> None:
        self.note_ends()
        with self.sessions() as session:
            today = database_now(session).astimezone(UTC).date()
            for tenant_id in TENANTS:
                found: Counter[tuple[UUID, str]] = Counter()
                for each in usage.read(session, tenant_id, first=today - DAY, last=today + DAY):
                    found[tenant_id, each.state] += each.num_jobs
                assert found == Counter({key: n for key, n in self.ended.items() if key[0] == tenant_id})

    def teardown(self) -> None:
        """When all has ended, in whatever way, nothing is held."""
        self.workers_crash()
        with self.sessions.begin() as session:
            for tenant_id in TENANTS:
                lifecycle.cancel_where(session, [], tenant_id=tenant_id)
                assert quotas.current_usage(session, tenant_id) == QuotaUsage()
                assert set(held_by_keys(session, tenant_id).values()) == {QuotaUsage()}


def held_by_keys(session: Session, tenant_id: UUID) -> dict[UUID, QuotaUsage]:
    """What each key's unfinished jobs of this tenant take."""
    return {
        key_id: key_quotas.current_usage(session, KeyQuota(key_id, tenant_id, KEY_LIMITS)) for key_id in KEYS
    }


@pytest.mark.timeout(300)
def test_any_sequence_of_verbs_leaves_quotas_and_usage_exact(sessions: sessionmaker[Session]) -> None:
    run_on(sessions, Life)


def test_adding_up_at_once_loses_and_doubles_nothing(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        register_engine(session, ENGINE)
        for _ in range(5):
            submission.submit(session, [spec(10, max_tokens=8)], Submitter(DEFAULT_TENANT, SMALL))
            lifecycle.cancel_where(session, [], tenant_id=DEFAULT_TENANT)
    with ThreadPoolExecutor(4) as pool:
        rounds = pool.map(lambda _: _round(sessions), range(12))
    assert sum(rounds) == 5
    with sessions() as session:
        assert session.scalar(select(func.sum(UsageDay.num_jobs))) == 5


def _round(sessions: sessionmaker[Session]) -> int:
    with sessions.begin() as session:
        return usage.add_up(session, limit=2)


def fill_up(sessions: sessionmaker[Session], shard: int, limits: TenantLimits) -> int:
    """Submit one or two jobs at a time until there is no room for one; every fifth transaction dies."""
    chance, num_stored, num = random.Random(shard), 0, 2  # noqa: S311  # no secret
    while num:

        def admit(session: Session, more: QuotaUsage, then: Sequence[Query]) -> None:
            allowances.take(session, DEFAULT_TENANT, shard, more, limits=limits, then=then)

        dies = chance.random() < 0.2
        try:
            with sessions.begin() as session:
                given = [spec(10, max_tokens=6) for _ in range(num)]
                submission.submit(session, given, Submitter(DEFAULT_TENANT, SMALL, admit))
                if dies:
                    session.rollback()
        except LimitError:
            num -= 1
        else:
            num_stored += 0 if dies else num
            num = chance.choice([1, 2])
    return num_stored


@pytest.mark.parametrize(
    "limits",
    [
        TenantLimits(max_enqueued_tokens=10**9, max_jobs=61, max_requests=1),
        TenantLimits(max_enqueued_tokens=16 * 47 + 15, max_jobs=10**6, max_requests=1),
    ],
    ids=["jobs", "tokens"],
)
def test_processes_that_submit_at_once_fill_a_quota_exactly(
    sessions: sessionmaker[Session], limits: TenantLimits
) -> None:
    most = min(limits.max_jobs, limits.max_enqueued_tokens // 16)
    with ThreadPoolExecutor(6) as pool:
        stored = list(pool.map(lambda shard: fill_up(sessions, shard % 4, limits), range(6)))
    with sessions() as session:
        held = quotas.current_usage(session, DEFAULT_TENANT)
    assert held.jobs == sum(stored)
    assert held.jobs == most, "not one more, and whoever was refused last had found no room"


def test_processes_that_submit_at_once_never_store_more_than_the_limit(
    sessions: sessionmaker[Session],
) -> None:
    with sessions.begin() as session:
        submission.submit(session, [spec(10)], Submitter(DEFAULT_TENANT, SMALL))
        each = stored_bytes.read(session, DEFAULT_TENANT)
    limits = TenantLimits(
        max_enqueued_tokens=10**9, max_jobs=10**6, max_requests=1, max_stored_bytes=50 * each + each // 2
    )
    with ThreadPoolExecutor(6) as pool:
        stored = list(pool.map(lambda shard: fill_up(sessions, shard % 4, limits), range(6)))
    with sessions() as session:
        held = quotas.current_usage(session, DEFAULT_TENANT, limits=limits)
        assert held.stored_bytes == session.scalar(text(KEPT), {"tenant_id": DEFAULT_TENANT})
    assert held.jobs == sum(stored) + 1
    assert limits.max_stored_bytes - each - 20 < held.stored_bytes <= limits.max_stored_bytes


def test_results_take_the_room_that_an_allowance_had(sessions: sessionmaker[Session]) -> None:
    limits = TenantLimits(max_enqueued_tokens=10**9, max_jobs=10**6, max_requests=1, max_stored_bytes=100_000)
    one = QuotaUsage(16, 1, stored_bytes=1)
    with sessions.begin() as session:
        register_engine(session)
        allowances.take(session, DEFAULT_TENANT, 0, one, limits=limits)
        submission.submit(session, [spec(10)], Submitter(DEFAULT_TENANT, SMALL))
        claimed = claims.claim(session, ENGINE, TERMS)
        assert claimed is not None
        long = output_of("x" * 100_000, 1)
        assert ending.complete(session, claimed.lease, long, FinishReason.STOP), "a result is always kept"
    with sessions.begin() as session:
        stored_bytes.add_up(session)
    with sessions() as session, pytest.raises(StorageQuotaError, match=r"Limit: 100,000 stored bytes"):
        allowances.take(session, DEFAULT_TENANT, 0, one, limits=limits)
    with sessions.begin() as session:
        deletion.remove(session, claimed.job.id, tenant_id=DEFAULT_TENANT)
    with sessions.begin() as session:
        assert stored_bytes.read(session, DEFAULT_TENANT) == 0, "although no total says so yet"
        stored_bytes.add_up(session)
        allowances.take(session, DEFAULT_TENANT, 0, one, limits=limits)


def test_what_allowances_hold_is_taken_back_when_another_process_needs_it(
    sessions: sessionmaker[Session],
) -> None:
    limits = TenantLimits(max_enqueued_tokens=10**9, max_jobs=100, max_requests=1)
    for shard in range(4):
        with sessions.begin() as session:
            allowances.take(session, DEFAULT_TENANT, shard, QuotaUsage(16, 1), limits=limits)
    with sessions.begin() as session:
        assert (session.scalar(select(func.sum(QuotaAllowance.jobs))) or 0) > 50
        assert quotas.admit(session, DEFAULT_TENANT, QuotaUsage(16, 100), limits=limits).jobs == 100
    with sessions() as session:
        assert session.scalar(select(func.sum(QuotaAllowance.jobs))) == 0


def test_an_allowance_under_another_limit_is_not_used(sessions: sessionmaker[Session]) -> None:
    wide = TenantLimits(max_enqueued_tokens=10**9, max_jobs=100, max_requests=1)
    with sessions.begin() as session:
        allowances.take(session, DEFAULT_TENANT, 0, QuotaUsage(16, 1), limits=wide)
    tight = TenantLimits(max_enqueued_tokens=10**9, max_jobs=1, max_requests=1)
    with sessions() as session, pytest.raises(LimitError):
        allowances.take(session, DEFAULT_TENANT, 0, QuotaUsage(32, 2), limits=tight)


def test_far_below_its_limits_a_tenant_s_jobs_are_not_summed(
    sessions: sessionmaker[Session], engine: Engine
) -> None:
    limits = TenantLimits(max_enqueued_tokens=10**9, max_jobs=1000, max_requests=1)
    sums: list[str] = []

    def watch(_c: object, _k: object, statement: str, *_: object) -> None:
        if "sum(jobs.reserved_tokens)" in statement:
            sums.append(statement)

    event.listen(engine, "before_cursor_execute", watch)
    try:
        for _ in range(100):
            with sessions.begin() as session:
                allowances.take(session, DEFAULT_TENANT, 0, QuotaUsage(16, 1), limits=limits)
    finally:
        event.remove(engine, "before_cursor_execute", watch)
    assert len(sums) == 1


def test_what_the_quota_refuses_was_not_written_before(session: Session) -> None:
    session.execute(text("CREATE TEMPORARY SEQUENCE written"))
    writing = [Query(Statement("SELECT nextval('written')"), {})]
    admit = QuotaCache().admission(DEFAULT_TENANT, LIMITS)
    admit(session, QuotaUsage(tokens=10, jobs=1), writing)
    before = session.scalar(text("SELECT last_value FROM written"))
    with pytest.raises(LimitError):
        admit(session, QuotaUsage(tokens=10, jobs=LIMITS.max_jobs + 1), writing)
    assert session.scalar(text("SELECT last_value FROM written")) == before
