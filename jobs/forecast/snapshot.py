"""The engines of a model as forecasts start from them: load, queue and speed of each; read-only."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from jobs.database import database_now
from jobs.engines import registry
from jobs.engines.capacity import Capacity
from jobs.forecast import shared_reading
from jobs.forecast.engine_speed import JobTiming, Speed, computed_tokens, measure
from jobs.forecast.simulation import EngineState, RemainingTokens
from jobs.forecast.start_times import expected_tokens
from jobs.models import Engine, Job, Reservation
from jobs.queries import QueuedJob
from jobs.scheduling import engine_load, halts
from jobs.scheduling.halts import Halt
from jobs.scheduling.output_history import PeersOnce
from jobs.scheduling.packing import Candidate, Family
from jobs.scheduling.prediction import PredictionPolicy
from jobs.scheduling.queue import Ranking
from jobs.scheduling.sizing import ClaimPolicy, group_of

# Most queued jobs read of one lane: enough of each size to simulate a hundred starts.
_MAX_ROWS: Final = 512
# Newest finished jobs, of all models and of one engine: more would only slow the measurement.
_RECENT: Final = 256
_MEASURED: Final = 64


@dataclass(frozen=True, slots=True)
class Registered:
    """An engine of the model, whether or not it takes jobs.

    Attributes:
        name: its configured name.
        capacity: what it can hold.
        is_up: it takes jobs now.
        halt: what alone keeps it from that; None: it takes jobs, or is down.
    """

    name: str
    capacity: Capacity
    is_up: bool
    halt: Halt | None = None


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """One model's engines and the head of its queue at one moment.

    Attributes:
        now: by the database's clock.
        registered: every engine of the model.
        up: those that take jobs; each with its capacity and as a forecast sees it.
        ranked: the candidates by id.
        jobs: their rows by id.
        lengths: what each candidate and each running job is expected to take from now on.
        halted: the tenants whose queues are halted. None of their jobs is a candidate.
        reading_share: of the work of reading the candidates' prompts, what is left if what they share is read
            once.
    """

    now: datetime
    registered: Sequence[Registered]
    up: Sequence[tuple[Capacity, EngineState]]
    ranked: Mapping[UUID, Candidate]
    jobs: Mapping[UUID, QueuedJob]
    lengths: Mapping[UUID, RemainingTokens]
    halted: Mapping[UUID, Halt]
    reading_share: float = 1.0


def take_snapshot(session: Session, model: str, policy: ClaimPolicy, *, unmeasured: Speed) -> QueueSnapshot:
    """Read what the packing of this model would use now; locks and writes nothing.

    Args:
        session: best with one snapshot for all its statements.
        model: to read.
        policy: that its workers claim under.
        unmeasured: speed assumed of an engine that has served nothing yet.
    """
    now, rows = _engines(session, model)
    ready = [each for each in rows if registry.why_not_ready(each, now=now) is None]
    up = [each for each in ready if each.halt is None]
    names = [each.name for each in up]
    reserved = _reserved(session, names)
    held = {name: _held(reserved[name]) for name in names}
    held_jobs = [job for found in held.values() for _, job in found]
    ended = _ended(session, names)
    expected = _Expectations(session, policy, now)
    lengths: dict[UUID, RemainingTokens] = {}
    ranked: dict[UUID, Candidate] = {}
    jobs: dict[UUID, QueuedJob] = {}
    queues: dict[Capacity, list[Candidate]] = {}
    up_states = []
    for engine in up:
        load = engine_load.of(engine, reserved[engine.name])
        if load.capacity not in queues:  # engines of one model are mostly alike
            ranking = Ranking(session, model, load.capacity, policy, now, max_rows=_MAX_ROWS)
            queues[load.capacity] = [each for lane in ranking.lanes() for each in lane]
            jobs |= ranking.jobs
            expected.read_peers([*ranking.jobs.values(), *held_jobs])
        mine = queues[load.capacity]
        timings = [*ended[engine.name], *(_timing(*each, now=now) for each in held[engine.name])]
        speed = measure([each for each in timings if each is not None], otherwise=unmeasured)
        lengths |= {job.id: expected.rest(reservation, job, speed) for reservation, job in held[engine.name]}
        ranked |= {each.job_id: each for each in mine}
        lengths |= {each: expected.whole(jobs[each]) for each in ranked if each not in lengths}
        budget = load.budget.without_waiting_room()
        state = EngineState(mine, list(load.reserved.values()), budget, engine.max_batch_size, speed)
        up_states.append((load.capacity, state))
    registered = [
        Registered(
            each.name,
            registry.capacity_of(each),
            is_up=each in up,
            halt=halts.halt_of(each) if each in ready else None,
        )
        for each in rows
    ]
    share = 1.0
    if up and all(each.shares_prefix for each in up):
        once = shared_reading.read_once(session, [jobs[each] for each in ranked], _read(held), lengths)
        share = shared_reading.reading_share({each: lengths[each] for each in ranked}, once)
        lengths |= once
    halted = halts.halted_queues(session)
    return QueueSnapshot(now, registered, up_states, ranked, jobs, lengths, halted, share)


_Held = tuple[Reservation, Job]
_Rows = Sequence[tuple[Reservation, Job | None]]


def _engines(session: Session, model: str) -> tuple[datetime, Sequence[Engine]]:
    """Read the engines of the model by name, and the database's clock."""
    query = select(Engine, func.clock_timestamp()).where(Engine.model == model).order_by(Engine.name)
    found = session.execute(query).all()
    return (found[0][1] if found else database_now(session)), [engine for engine, _ in found]


def _reserved(session: Session, names: Sequence[str]) -> Mapping[str, _Rows]:
    """Read the reservations on each engine, each with its job if that has its lease."""
    found: dict[str, list[tuple[Reservation, Job | None]]] = defaultdict(list)
    rows = session.execute(
        select(Reservation, Job)
        .outerjoin(Job, (Job.id == Reservation.job_id) & (Job.lease_id == Reservation.lease_id))
        .where(Reservation.engine_name.in_(names))
    )
    for reservation, job in rows:
        found[reservation.engine_name].append((reservation, job))
    return found


def _held(reserved: _Rows) -> list[_Held]:
    """Return the running jobs among them."""
    return [(row, job) for row, job in reserved if job is not None and row.state == "held"]


def _read(held: Mapping[str, Sequence[_Held]]) -> dict[Family, UUID]:
    """Return the families that running jobs have read, or read now, each with the text of one."""
    jobs = [job for each in held.values() for _, job in each]
    return {
        Family(job.tenant_id, job.family): job.text_id
        for job in jobs
        if job.family is not None and job.text_id is not None
    }


def _ended(session: Session, names: Sequence[str]) -> dict[str, list[JobTiming]]:
    """Read the last jobs that each engine served without interruption."""
    newest = aliased(
        Job,
        select(Job)
        .where(Job.finalized_at.is_not(None))
        .order_by(Job.finalized_at.desc())
        .limit(_RECENT)
        .subquery(),
    )
    unbroken = (newest.attempt, newest.num_rescues, newest.num_yields, newest.num_preemptions)
    rows = session.scalars(
        select(newest).where(
            newest.state == "completed",
            newest.engine_name.in_(names),
            newest.first_token_at.is_not(None),
            *(column == 0 for column in unbroken),
        )
    )
    found: dict[str, list[JobTiming]] = defaultdict(list)
    for job in rows:
        timings = found[job.engine_name or ""]
        if len(timings) < _MEASURED and job.started_at and job.first_token_at and job.finalized_at:
            timings.append(
                JobTiming(
                    began_at=job.started_at.timestamp(),
                    first_token_at=job.first_token_at.timestamp(),
                    until=job.finalized_at.timestamp(),
                    prompt_tokens=_computed(job),
                    new_tokens=job.completion_tokens,
                )
            )
    return found


def _timing(reservation: Reservation, job: Job, *, now: datetime) -> JobTiming | None:
    """Describe a running job's time so far.

    Returns:
        None if it resumed from a checkpoint, because its times then span several runs.
    """
    if reservation.output_before or reservation.is_waiting:
        return None
    first = job.first_token_at.timestamp() if job.first_token_at else None
    began = reservation.created_at.timestamp()
    return JobTiming(began, first, now.timestamp(), _computed(job), job.completion_tokens)


def _computed(job: Job) -> float:
    return computed_tokens(job.prompt_tokens or 0, cached=job.cached_tokens or 0)


@dataclass(slots=True)
class _Expectations:
    """What jobs are expected to take, by what their peers did; reads the peers once."""

    session: Session
    policy: ClaimPolicy
    now: datetime
    peers: PeersOnce = field(init=False)

    def __post_init__(self) -> None:
        """Start without any peers read."""
        self.peers = PeersOnce(self.session, self.policy.history)

    def read_peers(self, jobs: Iterable[Job | QueuedJob]) -> None:
        """Read the peers of all these jobs at once."""
        self.peers.read({group_of(job) for job in jobs})

    def rest(self, reservation: Reservation, job: Job, speed: Speed) -> RemainingTokens:
        """Estimate what a running job will still take; nothing if it was asked to end."""
        if job.stop_reason is not None:
            return RemainingTokens(0, 0)
        held_tokens = (job.prompt_tokens or 0) + job.completion_tokens
        has_read = job.completion_tokens > reservation.output_before
        reading_s = speed.reading_s(held_tokens)
        since_s = (self.now - reservation.created_at).total_seconds()
        unread = 0.0 if has_read or not reading_s else held_tokens * max(0.05, 1 - since_s / reading_s)
        return RemainingTokens(unread, self._new_tokens(job))

    def whole(self, job: QueuedJob) -> RemainingTokens:
        """Estimate what a queued job will take.

        It reads what it generated earlier like its prompt.
        """
        return RemainingTokens(job.prompt_tokens + job.completion_tokens, self._new_tokens(job))

    def _new_tokens(self, job: Job | QueuedJob) -> float:
        return expected_tokens(
            self.peers.of(group_of(job)).near(job.prompt_tokens or 0),
            produced=job.completion_tokens,
            max_tokens=job.max_tokens,
            cold_tokens=(self.policy.prediction or PredictionPolicy()).cold_tokens,
        )
