"""One workload, several contenders, the same engine: makespans from the open gate to the last stored result.

The clock starts when everything is in place: the product's jobs are queued in Postgres and its worker,
frozen until then, resumes; the plain pool's tasks are queued in Redis and its worker resumes; a direct
client has its prompts in memory and is connected. It stops when the last result is stored in Postgres or in
Redis or, with a direct client, received.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.simulation.engine_model import EngineModel
from bench.simulation.lower_bound import lower_bound_s
from bench.simulation.occupancy import Moment
from bench.simulation.shared_documents import limit_s
from bench.simulation.workloads import Spec
from bench.stand import trace
from bench.stand.contenders import Contender, Span
from bench.stand.documents import Prompt
from bench.stand.stand import Stand

MAX_ENGINE_CPU = 0.1  # of a core
_NUM_TEXTS = 1000  # of different texts for a seed
MAX_LOST = 0.01  # of the makespan, by which other programs may slow down the engine's thread


@dataclass(frozen=True, slots=True)
class Run:
    """One contender on one workload.

    Attributes:
        contender: its name.
        workload: its name and max_tokens.
        seed: of the workload.
        num_jobs: of the workload.
        scale: how much faster than the modelled GPU the engine ran.
        makespan_s: wall clock.
        bound_s: lower bound of the makespan at that scale.
        engine_cpu: cores that the engine used.
        lost_s: how far the engine lagged its model.
        load: the machine's load average when the run began.
        faults: forbidden results: lost jobs, work done twice, more asked than the engine has.
        noise: reasons why its times do not count.
        read_tokens: of prompts, computed by the engine.
        recomputed: prompt tokens that the engine read again, as a share of all tokens.
        span: the contender's own report.
        refills_s: from each free slot to the next request and to its prefill; only if slots bind.
        occupancy: of the engine over time.
    """

    contender: str
    workload: str
    seed: int
    num_jobs: int
    scale: float
    makespan_s: float
    bound_s: float
    engine_cpu: float
    lost_s: float
    load: float
    faults: tuple[str, ...]
    noise: tuple[str, ...]
    read_tokens: int
    recomputed: float
    span: Span = field(repr=False)
    refills_s: list[tuple[float, float]] = field(repr=False)
    occupancy: list[Moment] = field(repr=False)

    @property
    def efficiency(self) -> float:
        """Lower bound divided by makespan."""
        return self.bound_s / self.makespan_s

    @property
    def counts(self) -> bool:
        """True if it has neither faults nor noise."""
        return not self.faults and not self.noise


Say = Callable[[Run], None]


@dataclass(frozen=True, slots=True)
class Scope:
    """How much to run.

    Attributes:
        num_jobs: of each workload.
        seeds: of each workload.
        say: receives every run.
    """

    num_jobs: int
    seeds: Sequence[int]
    say: Say


def contest(
    stand: Stand,
    workload: str,
    jobs_of: Callable[..., list[Spec]],
    *,
    scope: Scope,
    contenders: Mapping[str, Contender],
) -> list[Run]:
    """Run every contender on the jobs of every seed; alternate the order, so that drift hits all."""
    runs = []
    for seed in scope.seeds:
        runs += rounds(stand, workload, jobs_of(seed=seed), seed=seed, contenders=contenders, say=scope.say)
    return runs


def rounds(
    stand: Stand,
    workload: str,
    specs: list[Spec],
    *,
    seed: int,
    contenders: Mapping[str, Contender],
    say: Say,
) -> list[Run]:
    """Run every contender once on these jobs, on texts of its own where the engine keeps what it has read."""
    prompts = [] if stand.shares_blocks else stand.author.write(specs, seed=seed)
    runs = []
    for name in list(contenders)[:: -1 if seed % 2 else 1]:
        if stand.shares_blocks:
            prompts = stand.author.write(specs, seed=_NUM_TEXTS * seed + next(stand.texts))
        run = compete(stand, name, contenders[name], prompts, workload=workload, seed=seed)
        say(run)
        runs.append(run)
    return runs


def compete(
    stand: Stand, name: str, contender: Contender, prompts: Sequence[Prompt], *, workload: str, seed: int
) -> Run:
    """Run one contender, and judge it by the engine's trace."""
    load, cpu_before = os.getloadavg()[0], stand.engine_cpu_s()
    span = contender.run(stand, prompts)
    engine_cpu = (stand.engine_cpu_s() - cpu_before) / span.seconds
    seen = trace.read(stand.trace, since=span.began, until=time.monotonic())
    specs = [prompt.spec for prompt in prompts]
    capacity = stand.model.capacity
    bound_s = _bound_s(stand, specs)  # holds all the more with arrivals
    needed = sum(spec.prompt_tokens for spec in specs)
    size = capacity.tokens_per_block
    read = sum(each.prompt_tokens - size * each.reused_blocks for each in seen.requests)
    faults = _faults(span, seen, prompts)
    if span.seconds < bound_s:
        faults.append("faster than the lower bound")
    if contender.admits:
        faults += _overbooked(seen, stand)
    return Run(
        contender=name,
        workload=workload,
        seed=seed,
        num_jobs=len(prompts),
        scale=stand.time_scale,
        makespan_s=span.seconds,
        bound_s=bound_s,
        engine_cpu=engine_cpu,
        lost_s=seen.lost_s,
        load=load,
        faults=tuple(faults),
        noise=tuple(_noise(span, seen, engine_cpu=engine_cpu)),
        read_tokens=read,
        recomputed=(read - needed) / (needed + sum(spec.output_tokens for spec in specs)),
        span=span,
        refills_s=trace.refills(seen.requests, slots=capacity.max_batch_size),
        occupancy=trace.occupancy(seen.requests, capacity, since=span.began),
    )


def _faults(span: Span, seen: trace.Seen, prompts: Sequence[Prompt]) -> list[str]:
    wanted = [prompt.answer_tokens for prompt in prompts]
    num_wrong = sum(found != right for found, right in zip(span.tokens, wanted, strict=True))
    twice = sum(each.generated for each in seen.requests) - len(prompts) - sum(wanted)  # an end token each
    found = {
        f"{num_wrong} jobs lost or cut": num_wrong,
        f"{twice} tokens generated twice": twice,
        f"{seen.num_open} requests still open": seen.num_open,
    }
    return [fault for fault, is_so in found.items() if is_so]


def _noise(span: Span, seen: trace.Seen, *, engine_cpu: float) -> list[str]:
    found = {
        f"the engine took {engine_cpu:.0%} of a core": engine_cpu > MAX_ENGINE_CPU,
        f"the engine lost {seen.lost_s:.2f} s": seen.lost_s > MAX_LOST * span.seconds,
    }
    return [noise for noise, is_so in found.items() if is_so]


def _bound_s(stand: Stand, specs: Sequence[Spec]) -> float:
    return (limit_s if stand.shares_blocks else lower_bound_s)(stand.model, specs)


def _overbooked(seen: trace.Seen, stand: Stand) -> list[str]:
    """Return what was asked of the engine beyond what it has.

    What requests share is not in its trace. There a request that waited for longer than an iteration lasts
    shows that it had no room.
    """
    capacity = stand.model.capacity
    slots, blocks = trace.most_asked(seen.requests, capacity)
    found = [f"{slots} slots asked"] if slots > capacity.max_batch_size else []
    if not stand.shares_blocks:
        return [*found, f"{blocks} blocks asked"] if blocks > capacity.max_blocks else found
    patience = _longest_iteration_s(stand.model) + seen.lost_s
    waited = sum(each.began - each.came > patience for each in seen.requests)
    return [*found, f"{waited} requests waited in the engine"] if waited else found


def _longest_iteration_s(model: EngineModel) -> float:
    pool, chunk = model.capacity.max_tokens_in_pool, model.chunk
    return model.weights_s + model.kv_s * pool + model.prefill_s * chunk + model.pair_s * chunk * pool
