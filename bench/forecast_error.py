"""`python -m bench.forecast_error`: how far estimated starts are from the real ones, on the simulator.

Every so often during a run, all waiting jobs get an estimate of their start from what the service sees:
which jobs run, what they and earlier jobs produced, and how long that took. Nothing is taken from the
engine's model.
"""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median, quantiles

from bench.simulation.engine import VirtualEngine
from bench.simulation.engine_model import A6000, EngineModel
from bench.simulation.policies import LONGBATCH, Packed, Sizing, policies, running
from bench.simulation.policies import candidate as candidate_of
from bench.simulation.simulator import Conditions, _Simulation
from bench.simulation.workloads import WORKLOADS, Spec, make
from bench.simulation.world import SimulatedJob, World
from jobs.forecast.engine_speed import A6000 as UNMEASURED
from jobs.forecast.engine_speed import JobTiming, Speed, measure
from jobs.forecast.simulation import EngineState, RemainingTokens
from jobs.forecast.start_times import expected_tokens, forecast, later_s
from jobs.scheduling.prediction import PredictionPolicy

# The service's own values: starts simulated ahead, and jobs whose timing is measured.
HORIZON, MEASURED = 128, 64
EVERY_S = 120.0


@dataclass(frozen=True, slots=True)
class PredictedStart:
    """One estimate.

    Attributes:
        at: when it was made, in seconds since the start.
        job: whose start it estimates.
        place: in the order of the estimates; 1 is next.
        seconds: estimated wait from then on.
    """

    at: float
    job: SimulatedJob
    place: int
    seconds: float

    @property
    def waited_s(self) -> float:
        """Actual wait."""
        return (self.job.started_at or 0.0) - self.at

    @property
    def error(self) -> float:
        """Error relative to the actual wait; waits below a second count as one."""
        return (self.seconds - self.waited_s) / max(self.waited_s, 1)


class TimedEngine(VirtualEngine):
    """Records when each job's first token was generated."""

    def __init__(self, model: EngineModel) -> None:
        super().__init__(model)
        self.first_token_at: dict[int, float] = {}

    def _prefill_iteration(self) -> None:
        reading = [each for each in self.active if each.prefilling]
        super()._prefill_iteration()
        for each in reading:
            if not each.prefilling:
                self.first_token_at.setdefault(each.job, self.now)


@dataclass(slots=True)
class StartPredictor:
    """The product's policy, which also makes estimates.

    Attributes:
        policy: the product's.
        engine: runs the jobs.
        jobs: of the workload.
        predicted: estimates so far.
        speeds: measured so far.
    """

    policy: Packed
    engine: TimedEngine
    jobs: list[SimulatedJob]
    predicted: list[PredictedStart] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)
    next_at: float = EVERY_S

    @property
    def book(self) -> Sizing:
        """The product's sizing."""
        return self.policy.book

    def pick(self, world: World) -> SimulatedJob | None:
        """Pick as the product does; once nothing more starts and it is time, estimate."""
        picked = self.policy.pick(world)
        if picked is None and world.now >= self.next_at and world.queue:
            self.next_at = world.now + EVERY_S
            self.predicted += self._estimate(world)
        return picked

    def _estimate(self, world: World) -> Iterator[PredictedStart]:
        speed = measure(list(self._timings(world)), otherwise=UNMEASURED)
        self.speeds.append(speed)
        lengths = {each.job_id: _length(world, each) for each in (*world.queue, *world.running)}
        candidates = [candidate_of(self.policy, world, each) for each in world.queue]
        size = world.capacity.max_batch_size
        state = EngineState(candidates, running(world), world.budget, size, speed)
        found = forecast([state], lengths, policy=self.policy.packing, horizon=HORIZON)
        places = {job_id: place for place, job_id in enumerate(found.starts, 1)}
        ahead_s = 0.0
        for rank, each in enumerate(world.queue, 1):
            seconds = found.starts.get(each.job_id)
            if seconds is None:
                seconds = later_s(found, cost_ahead_s=ahead_s)
            ahead_s += state.cost_s(lengths[each.job_id])
            if seconds is not None:
                yield PredictedStart(world.now, each, places.get(each.job_id, rank), seconds)

    def _timings(self, world: World) -> Iterator[JobTiming]:
        ended = [job for job in self.jobs if job.finished_at is not None]
        newest = sorted(ended, key=lambda job: job.finished_at or 0.0)[-MEASURED:]
        for job in (*newest, *world.running):
            sequence = job.sequence
            began = job.started_at
            if began is None and sequence is not None:
                began = sequence.started_at
            if began is not None and job.num_segments == 1:
                yield JobTiming(
                    began,
                    self.engine.first_token_at.get(job.number),
                    job.finished_at or world.now,
                    job.spec.prompt_tokens,
                    job.produced + (sequence.produced if sequence else 0),
                )


def predict_starts(specs: Iterable[Spec], model: EngineModel) -> StartPredictor:
    """Run the workload with estimates."""
    policy = policies()[LONGBATCH]
    if not isinstance(policy, Packed):
        raise TypeError
    jobs = [SimulatedJob(number=number, spec=spec) for number, spec in enumerate(specs)]
    predictor = StartPredictor(policy, TimedEngine(model), jobs)
    simulation = _Simulation(jobs, predictor, Conditions(model))
    simulation.engine = predictor.engine
    simulation.run()
    return predictor


def _length(world: World, job: SimulatedJob) -> RemainingTokens:
    sequence = job.sequence
    new_tokens = expected_tokens(
        world.peers(job),
        produced=job.produced + (sequence.produced if sequence else 0),
        max_tokens=job.spec.max_tokens,
        cold_tokens=PredictionPolicy().cold_tokens,
    )
    return RemainingTokens(max(0, job.held_tokens - (sequence.kv if sequence else 0)), new_tokens)


def main() -> None:
    """Print one line for each workload and range of places."""
    parser = argparse.ArgumentParser(prog="python -m bench.forecast_error", description=__doc__)
    parser.add_argument(
        "--workload", nargs="*", choices=WORKLOADS, default=["MIX-20", "MIX-40", "MOON", "TINY"]
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=300)
    asked = parser.parse_args()
    for name in asked.workload:
        predicted: list[PredictedStart] = []
        for seed in range(asked.seeds):
            specs = make(name, seed=seed, num_jobs=asked.jobs, max_tokens=2048)
            predicted += predict_starts(specs, A6000).predicted
        for low, high in ((1, 20), (20, HORIZON + 1), (HORIZON + 1, asked.jobs)):
            some = [each for each in predicted if low <= each.place < high]
            if len(some) > 1:
                errors = [abs(each.error) for each in some]
                print(  # noqa: T201  # its output
                    f"{name:7} place {low:3} to {high - 1:3}: {len(some):6} estimates,"
                    f" median wait {median(each.waited_s for each in some):6.0f} s,"
                    f" error median {median(errors):.3f}, 9 of 10 within {quantiles(errors, n=10)[-1]:.2f},"
                    f" bias {median(each.error for each in some):+.3f}"
                )


if __name__ == "__main__":
    main()
