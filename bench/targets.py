"""The targets that a simulation can show, each next to its peer or limit on the same seeded workloads."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from bench.report import Row, judge
from bench.simulation import policies as known
from bench.simulation.engine_model import A6000, H200, EngineModel
from bench.simulation.lower_bound import lower_bound_s
from bench.simulation.policies import Policy, policies
from bench.simulation.shared_documents import (
    SharedPacked,
    ask,
    ask_big,
    asker_and_other,
    least_prefill,
    limit_s,
)
from bench.simulation.simulator import Conditions, Outcome, simulate
from bench.simulation.workloads import Arrivals, Spec, bursty, make, poisson

PACKED_SIZES = (
    ("MIX-20", 2048),
    ("MIX-20", 32_768),
    ("MIX-40", 2048),
    ("MIX-40", 32_768),
    ("MOON", 2048),
    ("TINY", 2048),
)
LEAST_EFFICIENCY = {"MIX-20": 0.96, "MIX-40": 0.96, "MOON": 0.985}
LEAST_OVER_FCFS = {("MIX-20", 2048): 1.06, ("MIX-20", 32_768): 1.28}
DOCUMENTS = {"ASK": ask, "ASK-BIG": ask_big}
WEIGHTS = {"small": 3.0, "large": 1.0}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to simulate.

    Attributes:
        num_jobs: of each workload; efficiency is judged at 300 or more.
        seeds: of each workload.
        first_seed: lowest seed; the policy was tuned on 0 to 4.
        only: names of workloads; empty: all.
    """

    num_jobs: int = 300
    seeds: int = 3
    first_seed: int = 0
    only: frozenset[str] = frozenset()

    @property
    def each_seed(self) -> range:
        """Seeds of every workload."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def row(self, target: str, workload: str, values: Sequence[float], *, peer: str, goal: str = "") -> Row:
        """Compare the median of these values with a goal such as `>= 0.96` or `<= 1.1`."""
        return judge(target, workload, values, peer=peer, goal=goal, scale="virtual time", seeds=self.seeds)

    def wants(self, workload: str) -> bool:
        """Return True if the workload is to be simulated."""
        return not self.only or workload in self.only


def rows(plan: Plan) -> Iterator[Row]:
    """Yield all requested rows as they are ready."""
    for workload, max_tokens in PACKED_SIZES:
        if plan.wants(workload):
            yield from efficiency(plan, workload, max_tokens)
    if plan.wants("MOON"):
        yield from gaps(plan)
    if plan.wants("MIX-20"):
        yield from arrivals(plan)
    if plan.wants("REASON"):
        yield from overcommit(plan)
    if plan.wants("STARVE"):
        yield from starvation(plan)
    yield from sharing(plan)
    if plan.wants("MIX-20"):
        yield from fairness(plan)


def efficiency(plan: Plan, workload: str, max_tokens: int) -> Iterator[Row]:
    """Measure target 1, lower bound by makespan at t=0, also of every peer."""
    size = f"{workload} {max_tokens}"
    workloads = _workloads(plan, workload, max_tokens)
    reached = {
        name: [_efficiency(A6000, specs, _run(specs, policy)) for specs in workloads]
        for name, policy in policies().items()
    }
    ours, fcfs = reached.pop(known.LONGBATCH), reached[known.FCFS]
    least = LEAST_EFFICIENCY.get(workload)
    yield plan.row("1 efficiency", size, ours, goal=f">= {least}" if least else "", peer="lower bound")
    least = LEAST_OVER_FCFS.get((workload, max_tokens))
    over = [mine / theirs for mine, theirs in zip(ours, fcfs, strict=True)]
    yield plan.row("1 speed-up", size, over, goal=f">= {least}" if least else "", peer=known.FCFS)
    for name, values in reached.items():
        yield plan.row(f"efficiency of: {name}", size, values, peer="lower bound")
    forgetful = Conditions(A6000, reuses_prefix=False)
    policy = policies(reuses_prefix=False)[known.LONGBATCH]
    without = [_efficiency(A6000, specs, simulate(specs, policy, forgetful)) for specs in workloads]
    yield plan.row("efficiency without prefix cache", size, without, peer="lower bound")


def gaps(plan: Plan) -> Iterator[Row]:
    """Measure the cost of a gap between a free slot and its next prefill, by engine."""
    workloads = _workloads(plan, "MOON", 2048)
    policy = policies()[known.LONGBATCH]
    for name, model in (("A6000", A6000), ("H200", H200)):
        without = [simulate(specs, policy, Conditions(model, gap_s=0)).makespan_s for specs in workloads]
        for gap_s in (0.01, 0.05, 0.25, 1.0):
            slowed = [
                simulate(specs, policy, Conditions(model, gap_s=gap_s)).makespan_s for specs in workloads
            ]
            cost = [with_gap / best - 1 for with_gap, best in zip(slowed, without, strict=True)]
            yield plan.row(f"cost of a {gap_s:g} s refill gap", f"MOON 2048, {name}", cost, peer="no gap")


def sharing(plan: Plan) -> Iterator[Row]:
    """Measure targets 16 to 18, on engines that reuse what they have read."""
    for workload, questions in DOCUMENTS.items():
        if plan.wants(workload):
            yield from documents(plan, workload, questions)
    if plan.wants("ASK"):
        yield from shared_fairness(plan)


def documents(plan: Plan, workload: str, questions: Callable[..., list[Spec]]) -> Iterator[Row]:
    """Measure targets 16 and 17: many questions about few documents, on an engine that reuses them."""
    workloads = [questions(seed=seed) for seed in plan.each_seed]
    run = {
        (name, credits_reuse): [
            simulate(specs, policy, Conditions(A6000, shares_documents=True, credits_reuse=credits_reuse))
            for specs in workloads
        ]
        for name, policy in (("ours", SharedPacked()), (known.FCFS, policies()[known.FCFS]))
        for credits_reuse in (True, False)
    }
    for credits_reuse, where in ((True, workload), (False, f"{workload}, shared blocks not credited")):
        ours, fcfs = run["ours", credits_reuse], run[known.FCFS, credits_reuse]
        asked = (lambda goal: goal) if credits_reuse else (lambda _goal: "")
        reached = [
            limit_s(A6000, specs) / each.makespan_s for specs, each in zip(workloads, ours, strict=True)
        ]
        yield plan.row("16 of the limit", where, reached, goal=asked(">= 0.95"), peer="read once")
        over = _ratios(fcfs, ours, _makespan)
        yield plan.row("16 speed-up", where, over, goal=asked(">= 4"), peer=known.FCFS)
        read = [
            each.prefilled_tokens / least_prefill(specs) for specs, each in zip(workloads, ours, strict=True)
        ]
        yield plan.row("17 tokens prefilled", where, read, goal=asked("<= 1.03"), peer="read once")


def shared_fairness(plan: Plan) -> Iterator[Row]:
    """Measure target 18: computed tokens of two tenants, one of whom asks much about few documents."""
    conditions = Conditions(A6000, shares_documents=True, credits_reuse=True)
    off, waits = [], []
    for seed in plan.each_seed:
        specs = asker_and_other(seed)
        ours = simulate(specs, SharedPacked(), conditions)
        served = ours.shares["asker"]
        off.append(abs(served["asker"] / served.total() / 0.5 - 1))
        waits.append(_longest(ours) / _longest(simulate(specs, policies()[known.FCFS], conditions)))
    where = "ASK beside MIX-20, weights 1:1"
    yield plan.row("18 share off its weight", where, off, goal="<= 0.1", peer="weights")
    yield plan.row("18 longest wait", where, waits, goal="<= 1.1", peer=known.FCFS)


def overcommit(plan: Plan) -> Iterator[Row]:
    """Measure target 4: long answers of unknown length."""
    workloads = _workloads(plan, "REASON", 32_768)
    for reuses, where in ((True, "REASON"), (False, "REASON, no prefix cache")):
        conditions = Conditions(A6000, reuses_prefix=reuses)
        run = {
            name: [simulate(specs, policy, conditions) for specs in workloads]
            for name, policy in policies(reuses_prefix=reuses).items()
            if name in {known.LONGBATCH, known.FIRST_FIT, known.ORACLE}
        }
        ours = run[known.LONGBATCH]
        asked = (lambda goal: goal) if reuses else (lambda _goal: "")
        over_max = _ratios(run[known.FIRST_FIT], ours, _makespan)
        yield plan.row("4 speed-up", where, over_max, goal=asked(">= 1.25"), peer=known.FIRST_FIT)
        of_oracle = _ratios(run[known.ORACLE], ours, _makespan)
        yield plan.row("4 of the oracle", where, of_oracle, goal=asked(">= 0.95"), peer=known.ORACLE)
        again = [outcome.recomputed_share for outcome in ours]
        yield plan.row("4 recomputed tokens", where, again, goal=asked("<= 0.02"), peer="all tokens")
        failed = [sum(job.finished_at is None for job in outcome.jobs) for outcome in ours]
        yield plan.row("4 failed", where, failed, goal="<= 0", peer="all jobs")


def starvation(plan: Plan) -> Iterator[Row]:
    """Measure target 5: the longest wait at 0.9 load, and what it costs in time."""
    workloads = _arriving(plan, "STARVE", poisson, load=0.9)
    run = {name: [_run(specs, policy) for specs in workloads] for name, policy in policies().items()}
    ours, fcfs, unfair = run.pop(known.LONGBATCH), run.pop(known.FCFS), run[known.UNFAIR]
    yield plan.row("5 longest wait", "STARVE", _ratios(ours, fcfs, _longest), goal="<= 1.1", peer=known.FCFS)
    slower = _ratios(ours, unfair, _makespan)
    yield plan.row("5 makespan", "STARVE", slower, goal="<= 1.01", peer=known.UNFAIR)
    for name, outcomes in run.items():
        longest = _ratios(outcomes, fcfs, _longest)
        yield plan.row(f"longest wait of: {name}", "STARVE", longest, peer=known.FCFS)
    for load in (1.3, 2.0):  # makespans differ only where the engine is the bottleneck
        workloads = _arriving(plan, "STARVE", poisson, load=load)
        named = policies()
        ours, unfair = (
            [_run(specs, named[n]) for specs in workloads] for n in (known.LONGBATCH, known.UNFAIR)
        )
        slower = _ratios(ours, unfair, _makespan)
        yield plan.row("5 makespan", f"STARVE at {load} load", slower, goal="<= 1.01", peer=known.UNFAIR)


def arrivals(plan: Plan) -> Iterator[Row]:
    """Measure waits on MIX-20 when jobs arrive at 0.9 load, one by one and in bursts."""
    for how in (poisson, bursty):
        workloads = _arriving(plan, "MIX-20", how, load=0.9)
        named = policies()
        ours, fcfs = ([_run(specs, named[n]) for specs in workloads] for n in (known.LONGBATCH, known.FCFS))
        for what, quantity in (("longest", _longest), ("mean", _mean_wait)):
            waits = _ratios(ours, fcfs, quantity)
            yield plan.row(f"{what} wait", f"MIX-20 2048, {how.__name__} at 0.9 load", waits, peer=known.FCFS)


def fairness(plan: Plan) -> Iterator[Row]:
    """Measure target 5: tokens served to two tenants, one with ten times the backlog."""
    for weights in ({}, WEIGHTS):
        wanted = weights.get("small", 1) / (weights.get("small", 1) + weights.get("large", 1))
        off = []
        for seed in plan.each_seed:
            conditions = Conditions(A6000, weights=dict(weights))
            outcome = simulate(two_tenants(seed, plan.num_jobs), policies()[known.LONGBATCH], conditions)
            served = outcome.shares["small"]
            off.append(abs(served["small"] / served.total() / wanted - 1))
        where = f"MIX-20, 10:1 backlog, weights {weights.get('small', 1):g}:1"
        yield plan.row("5 share off its weight", where, off, goal="<= 0.1", peer="weights")


def two_tenants(seed: int, num_jobs: int) -> list[Spec]:
    """Make `num_jobs` jobs of one tenant and a tenth of that of another, all at t=0."""
    backlogs = (("large", num_jobs), ("small", max(1, num_jobs // 10)))
    return [
        replace(spec, tenant=tenant)
        for number, (tenant, size) in enumerate(backlogs)
        for spec in make("MIX-20", seed=2 * seed + number, num_jobs=size, max_tokens=2048)
    ]


def _workloads(plan: Plan, name: str, max_tokens: int) -> list[list[Spec]]:
    made = partial(make, name, num_jobs=plan.num_jobs, max_tokens=max_tokens)
    return [made(seed=seed) for seed in plan.each_seed]


def _arriving(plan: Plan, name: str, how: Arrivals, *, load: float) -> list[list[Spec]]:
    """Let the workloads arrive at this share of what the lower bound could serve."""
    return [
        how(specs, seed=seed, mean_gap_s=lower_bound_s(A6000, specs) / len(specs) / load)
        for seed, specs in enumerate(_workloads(plan, name, 2048))
    ]


def _run(specs: Iterable[Spec], policy: Policy) -> Outcome:
    return simulate(specs, policy, Conditions(A6000))


def _efficiency(model: EngineModel, specs: Sequence[Spec], outcome: Outcome) -> float:
    return lower_bound_s(model, specs) / outcome.makespan_s


def _makespan(outcome: Outcome) -> float:
    return outcome.makespan_s


def _mean_wait(outcome: Outcome) -> float:
    return fmean(outcome.waits_s)


def _longest(outcome: Outcome) -> float:
    return max(outcome.waits_s)


def _ratios(
    above: Iterable[Outcome], below: Iterable[Outcome], quantity: Callable[[Outcome], float]
) -> list[float]:
    return [quantity(one) / quantity(other) for one, other in zip(above, below, strict=True)]
