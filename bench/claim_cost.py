"""Target 6: what a claim costs in a long-used table with a deep queue, and during an old snapshot."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import psycopg
from pydantic import SecretStr
from sqlalchemy.orm import Session, sessionmaker

from bench.report import Row, judge
from bench.stand.fill import MODEL, fill
from bench.stand.stand import Stand
from jobs import database, lifecycle
from jobs.checkpoints import Output
from jobs.engines import registry
from jobs.scheduling import tick
from jobs.scheduling.output_history import History
from jobs.scheduling.sizing import ClaimPolicy
from jobs.settings import DatabaseSettings, JobSettings
from jobs.starting import Claim
from jobs.states import FinishReason
from worker.inference.outcome import Finished, RunEnd, write_outcome

_ENGINE = "bench-engine"
# A worker remembers outputs for as long. Without that each claim from the deep table, which alone has any,
# would read the newest 200 of each tenant.
_HISTORY = History(keep=timedelta(seconds=2))
_POLICY = ClaimPolicy(lease=timedelta(minutes=10), max_rescues=2, history=_HISTORY)
_OUTPUT = Output(text="an answer", ids=(5, 6, 7), num_tokens=64)
_COMPLETE = RunEnd(Finished(FinishReason.STOP), engine_is_done=True)
_WARM_UP = 50  # claims


@dataclass(frozen=True, slots=True)
class Depth:
    """How many jobs the tables hold.

    Attributes:
        completed: finished jobs in the large table.
        queued: waiting jobs in the large table.
        few_queued: waiting jobs in the small table, which holds nothing more.
        num_claims: timed in each table.
    """

    completed: int = 1_000_000
    queued: int = 200_000
    few_queued: int = 10_000
    num_claims: int = 500


def claim_cost(stand: Stand, depth: Depth) -> Iterator[Row]:
    """Time the small table, the large one, that with a snapshot, the small one again."""
    connections = database.make_engine(
        DatabaseSettings(url=SecretStr(stand.url("database_url"))), name="bench"
    )
    sessions = database.make_sessions(connections)
    try:
        few = _timed(stand, sessions, depth.num_claims, queued=depth.few_queued)
        many = _timed(stand, sessions, depth.num_claims, queued=depth.queued, completed=depth.completed)
        with _snapshot(stand):
            held = _loop(sessions, 4 * depth.num_claims)[-depth.num_claims :]
        few += _timed(stand, sessions, depth.num_claims, queued=depth.few_queued)
    finally:
        stand.ledger.clear()
        connections.dispose()
    where = f"{depth.completed:,} done + {depth.queued:,} queued"
    peer = f"{depth.few_queued:,} queued alone"

    def row(name: str, value: float, goal: str = "", against: str = peer) -> Row:
        return judge(
            name, where, [value], goal=goal, peer=against, scale="wall clock", seeds=depth.num_claims
        )

    yield row("6 claim, p50", _at(many, 50) / _at(few, 50), "<= 1.3")
    yield row("6 claim, p99", _at(many, 99) / _at(few, 99), "<= 2")
    yield row("6 claim, p50, snapshot held", _at(held, 50) / _at(many, 50), "<= 2", "without snapshot")
    yield row("claim, p50, ms", 1000 * _at(many, 50), against="")
    yield row("claim, p99, ms", 1000 * _at(many, 99), against="")


def _at(seconds: list[float], percentile: float) -> float:
    return float(np.percentile(seconds, percentile))


def _timed(
    stand: Stand, sessions: sessionmaker[Session], num_claims: int, *, queued: int, completed: int = 0
) -> list[float]:
    """Time each claim in a table with this many jobs; seconds."""
    stand.ledger.clear()
    fill(stand.ledger.database, completed=completed, queued=queued)
    with database.transaction(sessions) as session:
        registry.register(session, _ENGINE, MODEL, stand.model.capacity, now=database.database_now(session))
    return _loop(sessions, num_claims + _WARM_UP)[_WARM_UP:]


def _loop(sessions: sessionmaker[Session], num_claims: int) -> list[float]:
    """Claim like a worker: three slots stay taken, the fourth runs job after job."""
    taken: list[Claim] = []
    while len(taken) < 3 and isinstance(claim := _claim(sessions)[0], Claim):
        taken.append(claim)
    found = []
    for _ in range(num_claims):
        claim, seconds = _claim(sessions)
        if not isinstance(claim, Claim):
            raise TypeError("nothing could be claimed: the sizes leave no room for a fourth job")
        found.append(seconds)
        _end(sessions, claim)
    for each in taken:
        _end(sessions, each)
    return found


def _claim(sessions: sessionmaker[Session]) -> tuple[object, float]:
    """Time a claim without its commit, whose fsync costs the same everywhere."""
    with database.transaction(sessions) as session:
        began = time.perf_counter()
        found = tick.tick(session, _ENGINE, _POLICY, ended=[], limit=1).claims
        session.flush()
        return next(iter(found), None), time.perf_counter() - began


def _end(sessions: sessionmaker[Session], claim: Claim) -> None:
    with database.transaction(sessions) as session:
        lifecycle.finish(session, [write_outcome(claim.lease, _COMPLETE, _OUTPUT, settings=JobSettings())])


@contextmanager
def _snapshot(stand: Stand) -> Iterator[None]:
    """Hold a snapshot open for the block, so that nothing it sees can be cleaned up."""
    with psycopg.connect(stand.url("database_url")) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM engines")
        yield
