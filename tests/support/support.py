"""What several tests need: jobs in any state, and waiting for a condition."""

import os
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any, Literal, TypeVar
from uuid import UUID

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from sqlalchemy import text, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from claiming import claims
from jobs import lifecycle, submission
from jobs.checkpoints import Output
from jobs.database import database_now
from jobs.engines import registry, workers
from jobs.engines.capacity import Capacity
from jobs.engines.workers import WorkerReport
from jobs.ids import uuid7
from jobs.models import DEFAULT_TENANT, Base, Job, Tenant
from jobs.preparation import Counting
from jobs.prompts.abilities import ABILITIES, LORA, TOOLS, VECTORS
from jobs.prompts.store import CountedPrompt, NewText, SetCounter
from jobs.scheduling.sizing import ClaimPolicy
from jobs.starting import Claim
from jobs.states import FinishReason, JobState, StopReason
from jobs.submission import Submitter
from jobs.submission.job_specs import JobSpec
from jobs.tenants import keys
from jobs.tenants.keys import Scope
from jobs.transitions import Lease
from worker.turns import WorkRunner

T = TypeVar("T")
# Seconds that a test waits for what must happen. It bounds a hang and promises nothing: a machine at work
# takes many times as long as an idle one. pytest ends a test after 180.
PATIENCE = 90.0
# Seconds between two looks of a long wait.
_RAREST_LOOK = 0.1
# The servers of tests speak no TLS: no client need read certificates, 40 ms of CPU each time.
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
# From this many bytes on, TRUNCATE is quicker than DELETE and leaves no dead rows to later queries.
_LARGE_TABLE = 2**20
CAPACITY = Capacity(
    max_batch_size=4, max_blocks=2048, tokens_per_block=64, max_input_len=96_000, max_seq_len=131_072
)
POLICY = ClaimPolicy(lease=timedelta(seconds=60), max_rescues=2)
ENGINE = "engine-a"
MODEL = "test-model"
TEXT_ABILITIES = (ABILITIES | {TOOLS}) - VECTORS - {LORA}
# A key of the shape that callers send; it opens nothing outside these tests.
API_KEY = "lb_0123456789abcdef_" + "t" * 43
ERROR: dict[str, object] = {"code": "engine_error", "message": "it broke"}


class WordCounter:
    """A counter whose tokens are words: exact, and free of any tokenizer's files."""

    fingerprint = "words-1"

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:  # noqa: ARG002
        words = len(canonical.split())
        return CountedPrompt(packed_ids=b"ids", num_tokens=words, fingerprint=self.fingerprint)

    def count_together(self, canonicals: Sequence[str]) -> list[CountedPrompt | None]:
        return [self.count_prompt(each) for each in canonicals]


class UnstorableCounter(WordCounter):
    """Gives one prompt more tokens than a column holds."""

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:  # noqa: ARG002
        num_tokens = 2**31 if "unstorable" in canonical else 1
        return CountedPrompt(packed_ids=b"ids", num_tokens=num_tokens, fingerprint=self.fingerprint)


def eventually(
    look: Callable[..., T | Literal[False] | None], *, timeout: float = PATIENCE, interval: float = 0.02
) -> T:
    """Wait for the first truthy answer of `look`, which has no arguments but defaults.

    Most looks ask a server, for ten milliseconds of CPU: the longer it takes, the rarer they become.
    """
    began = time.monotonic()
    while True:
        answer = look()
        if answer:
            return answer
        waited = time.monotonic() - began
        if waited > timeout:
            raise AssertionError(f"nothing after {timeout} s; last answer: {answer!r}")
        time.sleep(max(interval, min(waited / 10, _RAREST_LOOK)))


def num_waiting_for_locks(sessions: sessionmaker[Session]) -> int:
    """Connections to this database that wait for a lock."""
    return _num_connections(sessions, "wait_event_type = 'Lock'")


def num_open_transactions(sessions: sessionmaker[Session]) -> int:
    """Other connections to this database with a transaction."""
    mine = "pid = pg_backend_pid() OR backend_type <> 'client backend'"
    return _num_connections(sessions, f"xact_start IS NOT NULL AND NOT ({mine})")


def _num_connections(sessions: sessionmaker[Session], which: str) -> int:
    found = f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {which}"  # noqa: S608  # ours
    with sessions() as session:
        return session.scalar(text(found)) or 0


@contextmanager
def refusing(
    sessions: sessionmaker[Session], *triggers: str, code: str = "check_violation"
) -> Iterator[None]:
    """Let the database refuse rows.

    Args:
        sessions: of the database.
        triggers: when each of them fires: `BEFORE INSERT ON jobs FOR EACH ROW WHEN (…)`.
        code: the condition that it names, such as `disk_full`.
    """
    with sessions.begin() as session:
        session.execute(
            text(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                f" RAISE EXCEPTION 'poison' USING ERRCODE = '{code}'; END $$"
            )
        )
        for number, fires in enumerate(triggers):
            session.execute(text(f"CREATE TRIGGER refuse_{number} {fires} EXECUTE FUNCTION refuse()"))
    yield
    with sessions.begin() as session:
        session.execute(text("DROP FUNCTION refuse CASCADE"))


def empty_database(session: Session) -> None:
    """Remove every job, engine and event; keep the tenants and their keys.

    TRUNCATE makes new files for all of a table, 60 ms for ours together, so that only large tables get one.
    """
    kept = {"tenants", "api_keys"}
    names = [table.name for table in Base.metadata.sorted_tables if table.name not in kept]
    query = "SELECT relname, pg_table_size(oid) FROM pg_class WHERE relname = ANY(:names)"
    rows = session.execute(text(f"{query} AND pg_relation_size(oid) > 0"), {"names": names})
    used: dict[str, int] = dict(rows.all())
    if large := [name for name, size in used.items() if size >= _LARGE_TABLE]:
        session.execute(text(f"TRUNCATE {', '.join(large)} CASCADE"))
    if small := [f"DELETE FROM {name};" for name in used.keys() - set(large)]:  # noqa: S608  # ours
        # As a replica does it: no foreign key asks for an order.
        order = ["SET LOCAL session_replication_role = replica;", *small, "RESET session_replication_role"]
        session.execute(text("".join(order)))


def ensure_api_key(session: Session) -> None:
    """The default tenant has the tests' key, with every scope."""
    if keys.find(session, API_KEY) is None:
        keys.create(session, secret=API_KEY, tenant_id=DEFAULT_TENANT, name="tests", scopes=list(Scope))


def register_engine(
    session: Session,
    name: str = ENGINE,
    capacity: Capacity = CAPACITY,
    *,
    model: str = MODEL,
    **abilities: Any,  # noqa: ANN401  # as `register` takes them
) -> None:
    """Let an engine be known, which takes all that generates text unless `abilities` say otherwise."""
    abilities = {"takes": TEXT_ABILITIES} | abilities
    registry.register(session, name, model, capacity, now=database_now(session), **abilities)


def report_service_worker(session: Session, **changed: Any) -> None:  # noqa: ANN401  # as a report has them
    """Let a service worker have reported that it lives, and that all of its loops run."""
    workers.report(session, replace(_SERVICE_WORKER, **changed))


_SERVICE_WORKER = WorkerReport(uuid7(), "service", "host-1:17", None)


def spec(
    prompt_tokens: int | None = 100, *, max_tokens: int = 64, prompt: str | None = None, **fields: object
) -> JobSpec:
    """A job of this size; without `prompt_tokens` it has to be prepared first."""
    canonical = prompt or f"prompt {uuid7()}"
    counted = None
    if prompt_tokens is not None:
        counted = CountedPrompt(
            packed_ids=sha256(canonical.encode()).digest(), num_tokens=prompt_tokens, fingerprint="test"
        )
    return JobSpec(
        text=NewText(canonical, counted),
        task="generate",
        model=MODEL,
        max_tokens=max_tokens,
        **fields,  # type: ignore[arg-type]  # named by the caller
    )


def submit_one(session: Session, given: JobSpec | None = None, *, tenant_id: UUID = DEFAULT_TENANT) -> Job:
    (job,) = submission.submit(session, [given or spec()], Submitter(tenant_id, CAPACITY))
    return job


def claim_one(session: Session, engine: str = ENGINE, policy: ClaimPolicy = POLICY) -> Claim:
    claimed = claims.claim(session, engine, policy)
    assert isinstance(claimed, Claim), "nothing could be claimed"
    return claimed


def job_in(session: Session, state: JobState, **fields: Any) -> Job:  # noqa: ANN401  # of each field's type
    """A job that reached this state through the verbs; the queue must be empty for the states past it."""
    if state is JobState.PREPARING:
        return submit_one(session, spec(None, **fields))
    job = submit_one(session, spec(**fields))
    if state is JobState.QUEUED:
        return job
    register_engine(session)
    lease = claim_one(session).lease
    assert lease.job_id == job.id
    _leave_running(session, lease, state)
    session.refresh(job)
    assert job.state == state
    return job


def _leave_running(session: Session, lease: Lease, state: JobState) -> None:
    output = output_of("some text")
    if state is JobState.COMPLETED:
        ending.complete(session, lease, output, FinishReason.STOP)
    elif state is JobState.FAILED:
        ending.fail(session, lease, ERROR)
    elif state is JobState.CANCELLED:
        ending.finish_stopped(session, lease, StopReason.CANCEL, output)
    elif state is JobState.EXPIRED:
        ending.finish_stopped(session, lease, StopReason.EXPIRE, None)


def output_of(text_: str, num_tokens: int = 3) -> Output:
    return Output(text=text_, ids=(5, 6, 7), num_tokens=num_tokens)


def within(session: Session) -> sessionmaker[Session]:
    """Sessions that commit into this session's transaction, for verbs that need several of their own."""
    session.flush()
    return sessionmaker(
        session.connection(), expire_on_commit=False, join_transaction_mode="create_savepoint"
    )


def runner_of(sessions: sessionmaker[Session]) -> WorkRunner:
    """What takes turns as a service worker does; nobody renews its leases."""
    return WorkRunner(sessions, shortest_lease=timedelta(seconds=30))


def new_tenant(session: Session) -> UUID:
    """Make another tenant."""
    tenant = Tenant(id=uuid7(), name=f"tenant {uuid7()}")
    session.add(tenant)
    session.flush()
    return tenant.id


def prepare_next(
    sessions: sessionmaker[Session] | Session,
    counter: SetCounter | None = None,
    *,
    default_capacity: Capacity = CAPACITY,
) -> Job | None:
    """The job whose prompt was counted next; None: none waits, or it ended meanwhile."""
    inner = within(sessions) if isinstance(sessions, Session) else sessions
    taken = runner_of(inner).run_next(Counting(counter or WordCounter(), default_capacity))
    if isinstance(sessions, Session):
        sessions.expire_all()
    if taken is None or taken.result is None:
        return None
    return sessions.merge(taken.result) if isinstance(sessions, Session) else taken.result


def prepare_all(
    sessions: sessionmaker[Session],
    counter: SetCounter | None = None,
    *,
    default_capacity: Capacity = CAPACITY,
) -> list[Job]:
    """The jobs whose prompts were counted until none was left."""
    work = Counting(counter or WordCounter(), default_capacity)
    taken = runner_of(sessions).run_some(work, limit=1000)
    return [each.result for each in taken if each.result is not None]


# Of an engine that a few jobs fill.
SMALL = Capacity(max_batch_size=2, max_blocks=20, tokens_per_block=64, max_input_len=1000, max_seq_len=1280)
LATER = timedelta(minutes=5)
places = st.integers(0, 9)


class JobMachine(RuleBasedStateMachine):
    """Runs verbs in committed transactions and remembers every lease that was ever given."""

    sessions: sessionmaker[Session]

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[Lease] = []

    @rule()
    def prepare(self) -> None:
        with self.sessions.begin() as session:
            prepare_next(session, default_capacity=SMALL)

    @rule()
    def expire(self) -> None:
        with self.sessions.begin() as session:
            lifecycle.expire(session, now=database_now(session) + LATER)

    @rule()
    def time_passes(self) -> None:
        with self.sessions.begin() as session:
            session.execute(update(Job).values(run_after=None))


def num_examples(thorough: int) -> int:
    """How many sequences of verbs a machine tries: a third as many as `make crashes` does."""
    return thorough if os.environ.get("LONGBATCH_PROVE") == "1" else thorough // 3


def run_on(sessions: sessionmaker[Session], machine: type[JobMachine]) -> None:
    """Run the machine on this database."""
    run_state_machine_as_test(
        type("LifeOnThisDatabase", (machine,), {"sessions": sessions}),
        settings=settings(
            max_examples=num_examples(25),
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes here
        ),
    )
