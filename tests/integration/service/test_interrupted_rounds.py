"""Counting prompts while jobs are cancelled or deleted, tokenizers panic and workers stop."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import database, lifecycle, submission
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT, Job
from jobs.preparation import Counting
from jobs.prompts.store import CountedPrompt
from jobs.settings import DatabaseSettings, JobSettings
from jobs.states import JobState
from jobs.submission import Submitter
from jobs.submission.repetition import Repetition
from jobs.tenants.idempotency import IdempotencyGuard
from support import (
    CAPACITY,
    PATIENCE,
    UnstorableCounter,
    WordCounter,
    prepare_all,
    prepare_next,
    runner_of,
    spec,
    submit_one,
)
from worker import maintenance

ONCE = Repetition(IdempotencyGuard("key", b"0" * 32, timedelta(hours=1)), is_submission=True)


class Panic(BaseException):
    """As a panic in Rust reaches Python."""


@dataclass
class HeldCounter(WordCounter):
    """Counts when it is let go on."""

    counting: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        self.counting.set()
        assert self.go_on.wait(20)
        return super().count_prompt(canonical, limit=limit)


class PanickingCounter(WordCounter):
    """Panics at one prompt."""

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        if "panic" in canonical:
            raise Panic
        return super().count_prompt(canonical, limit=limit)


def state(sessions: sessionmaker[Session], job: Job) -> str:
    with sessions() as session:
        return session.get_one(Job, job.id).state


def prepare(sessions: sessionmaker[Session], counter: WordCounter) -> Job | None:
    return prepare_next(sessions, counter)


def test_a_job_that_is_being_counted_is_cancelled_at_once(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        job = submit_one(session, spec(None))
    counter = HeldCounter()
    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(prepare, sessions, counter)
        assert counter.counting.wait(10)
        with transaction(sessions) as session:
            session.execute(text("SET LOCAL lock_timeout = '500ms'"))
            cancelled = lifecycle.cancel(session, job.id, tenant_id=DEFAULT_TENANT)
            assert cancelled.state == JobState.CANCELLED
        counter.go_on.set()
        assert counted.result(timeout=PATIENCE) is None
    assert state(sessions, job) == JobState.CANCELLED


def test_two_workers_never_count_one_prompt(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        first, second = submit_one(session, spec(None)), submit_one(session, spec(None))
    counter = HeldCounter()
    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(prepare, sessions, counter)
        assert counter.counting.wait(10)
        other = prepare(sessions, WordCounter())
        assert other is not None
        assert other.id == second.id
        assert prepare(sessions, WordCounter()) is None
        counter.go_on.set()
        assert counted.result(timeout=PATIENCE) is not None
    assert (state(sessions, first), state(sessions, second)) == ("queued", "queued")


def test_a_tokenizer_that_panics_at_a_prompt_fails_its_job_alone(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        bad, good = submit_one(session, spec(None, prompt="panic")), submit_one(session, spec(None))
    prepare_all(sessions, PanickingCounter())
    assert (state(sessions, bad), state(sessions, good)) == ("failed", "queued")


def test_a_job_that_the_database_refuses_to_prepare_holds_up_no_other(
    sessions: sessionmaker[Session],
) -> None:
    with transaction(sessions) as session:
        bad, good = submit_one(session, spec(None, prompt="unstorable")), submit_one(session, spec(None))
    prepare_all(sessions, UnstorableCounter())
    assert (state(sessions, bad), state(sessions, good)) == ("preparing", "queued")


def test_a_cancel_of_many_waits_only_for_jobs_that_are_being_changed(
    sessions: sessionmaker[Session],
) -> None:
    with transaction(sessions) as session:
        jobs = [submit_one(session) for _ in range(3)]
    with transaction(sessions) as other:
        other.execute(select(Job.id).where(Job.id == jobs[0].id).with_for_update())
        with transaction(sessions) as session:
            session.execute(text("SET LOCAL lock_timeout = '500ms'"))
            conditions = [Job.task == "generate"]
            assert lifecycle.cancel_where(session, conditions, tenant_id=DEFAULT_TENANT) == 2
    with transaction(sessions) as session:
        assert lifecycle.cancel_where(session, conditions, tenant_id=DEFAULT_TENANT) == 1


def test_counting_and_pruning_stop_between_two_steps(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        waiting = submit_one(session, spec(None))
    work = Counting(WordCounter(), CAPACITY)
    always = lambda: True  # noqa: E731  # as short as what it says
    assert runner_of(sessions).run_some(work, limit=9, is_stopping=always) == []
    assert set(maintenance.JobMaintenance(sessions).prune(JobSettings(), is_stopping=always).values()) == {0}
    assert state(sessions, waiting) == JobState.PREPARING


@dataclass
class Deletion:
    """Another request deletes a job as soon as this session looks for it."""

    sessions: sessionmaker[Session]
    job: Job

    def open(self) -> Session:
        deletion = self

        class LateSession(Session):
            def get(self, entity: Any, ident: Any, **options: Any) -> Any:  # noqa: ANN401  # as SQLAlchemy's
                if entity is Job:
                    with transaction(deletion.sessions) as other:
                        other.execute(delete(Job).where(Job.id == deletion.job.id))
                return super().get(entity, ident, **options)

        return LateSession(self.sessions.kw["bind"])


def test_a_key_whose_job_is_deleted_while_it_is_replayed_makes_a_new_job(
    sessions: sessionmaker[Session],
) -> None:
    def make(session: Session) -> list[Job]:
        return submission.submit(session, [spec()], Submitter(DEFAULT_TENANT, CAPACITY))

    with transaction(sessions) as session:
        (old,), _ = ONCE.run(session, make, tenant_id=DEFAULT_TENANT)
    with Deletion(sessions, old).open() as session, session.begin():
        (new,), is_replay = ONCE.run(session, make, tenant_id=DEFAULT_TENANT)
        assert (new.id != old.id, is_replay) == (True, False)


class SlowCounter(WordCounter):
    """Counts for longer than a transaction may idle here."""

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        threading.Event().wait(0.6)
        return super().count_prompt(canonical, limit=limit)


def test_a_prompt_that_takes_long_to_count_is_counted(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    with transaction(sessions) as session:
        waiting = submit_one(session, spec(None))
    engine = database.make_engine(
        database_settings.model_copy(update={"idle_in_transaction_timeout_seconds": 0.2}), pool_size=1
    )
    job = prepare_next(database.make_sessions(engine), SlowCounter())
    engine.dispose()
    assert job is not None
    assert (job.id, job.state) == (waiting.id, JobState.QUEUED)
