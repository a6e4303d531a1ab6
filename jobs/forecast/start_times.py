"""When queued jobs will start: the packing, simulated on engines of known speed; pure arithmetic.

It assumes that jobs generate what their peers did on average, and that no other job arrives. So it is an
estimate: each job's real length moves all later ones, and better ranked jobs that arrive later go first.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import inf
from uuid import UUID

from jobs.engines.capacity import Budget
from jobs.forecast.simulation import EngineState, RemainingTokens, SimulatedEngine
from jobs.scheduling.packing import Candidate, PackingPolicy, choose, fits
from jobs.scheduling.prediction import FEW
from jobs.states import Lane


@dataclass(frozen=True, slots=True)
class Forecast:
    """What will happen, as far as the simulation went.

    Attributes:
        at_once: jobs that nothing holds back.
        kept_waiting: jobs of the window that would fit now, but into room kept for others.
        budgets: what is left of each engine once they have started.
        starts: seconds from now until each job of the horizon starts, in the order of their starts.
        pace: seconds that pass while a second of engine time (`EngineState.cost_s` of the first engine) is
            served; None: nothing is served.
        overtaken_s: engine time of the jobs that still wait although later ranked ones have started.
        places: of each job of the horizon, the engine on which it starts, by its number.
        ends: seconds from now until each running job, and each of the horizon, ends.
    """

    at_once: frozenset[UUID]
    kept_waiting: frozenset[UUID]
    budgets: Sequence[Budget]
    starts: dict[UUID, float]
    pace: float | None
    overtaken_s: float
    places: Mapping[UUID, int]
    ends: Mapping[UUID, float]


def forecast(
    engines: Sequence[EngineState],
    lengths: Mapping[UUID, RemainingTokens],
    *,
    policy: PackingPolicy,
    horizon: int,
    head_only: Callable[[Sequence[UUID]], Collection[UUID]] | None = None,
) -> Forecast:
    """Simulate the next `horizon` starts or a few more.

    Every running and started job takes its expected length.

    Args:
        engines: those that take jobs of one model; they share the queue.
        lengths: of every candidate and every running job; one that is absent ends at once.
        policy: of the packing.
        horizon: starts after which it stops; `later_s` extrapolates from there.
        head_only: chooses the jobs of a lane, in rank order, that an engine considers; None: the first
            `policy.window`.
    """
    clock = _Clock(
        [SimulatedEngine.from_state(each, lengths) for each in engines], lengths, policy, head_only or _all
    )
    clock.start_all()
    at_once, kept_waiting = frozenset(clock.starts), clock.would_fit()
    budgets = [engine.budget for engine in clock.engines]
    while len(clock.starts) < horizon and clock.to_next_end():
        clock.start_all()
    served = [lengths[job_id] for job_id in clock.starts if job_id not in at_once]
    cost_s = sum(engines[0].cost_s(each) for each in served) if engines else 0.0
    pace = clock.now / cost_s if cost_s else None
    overtaken_s = _overtaken_s(engines[0], clock.starts, lengths) if engines else 0.0
    ends = clock.ends | clock.later_ends()
    return Forecast(at_once, kept_waiting, budgets, clock.starts, pace, overtaken_s, clock.places, ends)


def later_s(found: Forecast, *, cost_ahead_s: float) -> float | None:
    """Estimate when a job beyond the horizon starts, at the forecast's pace.

    Args:
        found: the forecast.
        cost_ahead_s: engine time (`EngineState.cost_s` of the first engine) of all jobs that rank before it.

    Returns:
        Seconds from now; None if nothing is served.
    """
    if found.pace is None:
        return None
    # The packing passes over about as many jobs at any time, small ones among large ones.
    last_start_s = next(reversed(found.starts.values()), 0.0)
    return max(found.pace * (cost_ahead_s - found.overtaken_s), last_start_s)


def expected_tokens(peers: Sequence[int], *, produced: int, max_tokens: int, cold_tokens: int) -> float:
    """Estimate the tokens that a job still generates, within what it may.

    That is what peers that got as far generated on average.

    Args:
        peers: outputs of ended jobs of the same tenant and template, in tokens, ascending.
        produced: tokens that it generated so far.
        max_tokens: most that it may generate in all.
        cold_tokens: reserved if too few peers got as far; the estimate is half of it.
    """
    left = max_tokens - produced
    longer = peers[bisect_right(peers, produced) :]
    if len(longer) < FEW:
        return max(1.0, min(left, cold_tokens) / 2)
    return max(1.0, sum(min(each, max_tokens) for each in longer) / len(longer) - produced)


def _overtaken_s(
    engine: EngineState, starts: Mapping[UUID, float], lengths: Mapping[UUID, RemainingTokens]
) -> float:
    waiting_s = overtaken_s = 0.0
    for each in engine.candidates:
        if each.job_id in starts:
            overtaken_s = waiting_s
        else:
            waiting_s += engine.cost_s(lengths[each.job_id])
    return overtaken_s


@dataclass(slots=True)
class _Clock:
    """All engines at one time.

    Attributes:
        now: seconds from the beginning.
        starts: so far.
        places: of these, the number of their engine.
        ends: so far, in seconds from the beginning.
    """

    engines: list[SimulatedEngine]
    lengths: Mapping[UUID, RemainingTokens]
    policy: PackingPolicy
    head_only: Callable[[Sequence[UUID]], Collection[UUID]]
    now: float = 0.0
    starts: dict[UUID, float] = field(default_factory=dict)
    places: dict[UUID, int] = field(default_factory=dict)
    ends: dict[UUID, float] = field(default_factory=dict)

    def start_all(self) -> None:
        """Start jobs until no engine can start another."""
        while sum(self._start_one(place, engine) for place, engine in enumerate(self.engines)):
            pass

    def to_next_end(self) -> bool:
        """Advance to the end of the next job.

        Returns:
            False if no job runs or none waits.
        """
        seconds = min((engine.seconds_to_next_end() for engine in self.engines), default=inf)
        if seconds == inf or not any(engine.queue for engine in self.engines):
            return False
        self.now += seconds
        for engine in self.engines:
            self.ends |= dict.fromkeys(engine.advance(seconds), self.now)
        return True

    def later_ends(self) -> dict[UUID, float]:
        """Estimate when those end that still run."""
        return {
            each.job.job_id: self.now + each.left * engine.state.speed.step_s
            for engine in self.engines
            for each in engine.jobs
        }

    def would_fit(self) -> frozenset[UUID]:
        """Find the jobs of the windows for which there is room."""
        return frozenset(
            each.job_id
            for engine in self.engines
            for each in self._window(engine)
            if fits(each, engine.budget)
        )

    def _start_one(self, place: int, engine: SimulatedEngine) -> bool:
        if engine.budget.free_slots < 1 or not engine.queue:
            return False
        choice = choose(
            self._window(engine),
            engine.reservations(),
            engine.budget,
            max_batch_size=engine.state.max_batch_size,
            policy=self.policy,
        )
        if choice.start is None:
            return False
        engine.start(engine.queue[choice.start], self.lengths[choice.start])
        self.starts[choice.start] = self.now
        self.places[choice.start] = place
        for each in self.engines:
            each.queue.pop(choice.start, None)
        return True

    def _window(self, engine: SimulatedEngine) -> list[Candidate]:
        """Return the jobs that the packing considers, which have waited until now."""
        passed = timedelta(seconds=self.now)
        window = []
        for lane in Lane:
            waiting = [each for each in engine.queue.values() if each.lane is lane]
            seen = self.head_only([each.job_id for each in waiting])
            window += [each for each in waiting if each.job_id in seen][: self.policy.window]
        return [replace(each, waited=each.waited + passed) for each in window]


def _all(job_ids: Sequence[UUID]) -> Collection[UUID]:
    return frozenset(job_ids)
