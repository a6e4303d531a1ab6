"""The targets on real servers: contests of the product with its peers, as lines of the table."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from bench.peers.drive import Direct, Pool
from bench.report import Row, judge
from bench.simulation.lower_bound import lower_bound_s
from bench.simulation.workloads import Spec, make, poisson
from bench.stand.contenders import CLAIMING_POOL, DIRECT, ONE_AT_A_TIME, POOL, PRODUCT, Contender, Longbatch
from bench.stand.contest import Run, Scope, contest, rounds
from bench.stand.fill import fill
from bench.stand.stand import Stand
from bench.targets import LEAST_EFFICIENCY, LEAST_OVER_FCFS, WEIGHTS, two_tenants

LEAST_OVER_DIRECT = {"TINY": 0.98, "MIX-20": 1.05}
RESERVES_MAX = Longbatch({"LONGBATCH_ENGINE__RESERVE_PREDICTED": "false"})
AT_MAX = "longbatch booking max_tokens"
ORACLE = "longbatch told the true lengths"
_PEERS: dict[str, Contender] = {
    PRODUCT: Longbatch(),
    POOL: Pool(),
    CLAIMING_POOL: Pool(claims=True),
    DIRECT: Direct(),
    ONE_AT_A_TIME: Direct(one_at_a_time=True),
}


def packing(
    stand: Stand, scope: Scope, workload: str, max_tokens: int, *, peers: Sequence[str] = (POOL, DIRECT)
) -> Iterator[Row]:
    """Measure targets 1 and 2: efficiency and speed-up with all jobs at t=0."""
    jobs_of = partial(make, workload, num_jobs=scope.num_jobs, max_tokens=max_tokens)
    contenders = _peers(PRODUCT, *peers)
    runs = contest(stand, f"{workload} {max_tokens}", jobs_of, scope=scope, contenders=contenders)
    where = f"{workload} {max_tokens}, N={scope.num_jobs}"
    least = LEAST_EFFICIENCY.get(workload)
    yield from _efficiency(runs, PRODUCT, "1 efficiency", where, f">= {least}" if least else "")
    for peer in peers:
        yield from _efficiency(runs, peer, f"efficiency of: {peer}", where)
    goals = {
        POOL: ("1 speed-up", LEAST_OVER_FCFS.get((workload, max_tokens))),
        DIRECT: ("2 speed-up", LEAST_OVER_DIRECT.get(workload) if max_tokens == 2048 else None),
    }
    for peer in peers:
        name, least = goals.get(peer, ("speed-up", None))
        ratios = _ratios(runs, peer, PRODUCT)
        yield from _row(runs, name, where, ratios, goal=f">= {least}" if least else "", peer=peer)


def refill(stand: Stand, scope: Scope, *, completed: int) -> Iterator[Row]:
    """Measure target 3: how long slots stay free, in a long-used table and in a pool.

    Slots of SMALL become free one by one. Those of TINY become free together, so the last waits for four
    claims.
    """
    contenders = _peers(PRODUCT, CLAIMING_POOL)
    stand.ledger.clear()
    fill(stand.ledger.database, completed=completed)
    stand.keeps_jobs = True
    try:
        for workload in ("SMALL", "TINY"):
            jobs_of = partial(make, workload, num_jobs=scope.num_jobs, max_tokens=2048)
            runs = contest(stand, f"{workload} 2048", jobs_of, scope=scope, contenders=contenders)
            where = f"{workload}, {completed:,} rows in the table"
            yield from _gaps(runs, PRODUCT, where, is_judged=workload == "SMALL")
            yield from _gaps(runs, CLAIMING_POOL, where, is_judged=False)
    finally:
        stand.keeps_jobs = False
        stand.ledger.clear()


def _gaps(runs: Sequence[Run], contender: str, where: str, *, is_judged: bool) -> Iterator[Row]:
    """Build rows of how long slots were free; judge only what a dispatcher decides.

    That is when the next request comes: its prefill begins at the engine's next iteration, which may be in
    the middle of another prompt.
    """
    gaps = np.array([gap for run in _valid(runs, contender) for gap in run.refills_s]).reshape(-1, 2) * 1000
    for column, what in enumerate(("next request", "next prefill")) if len(gaps) else ():
        for percentile, goal in ((50, "<= 10"), (99, "<= 40")):
            yield from _row(
                runs,
                f"{'3 ' if is_judged and not column else ''}slot free to {what}, p{percentile}, ms",
                where,
                [float(np.percentile(gaps[:, column], percentile))],
                goal=goal if is_judged and not column else "",
                peer=f"of: {contender}",
            )


def overcommit(stand: Stand, scope: Scope) -> Iterator[Row]:
    """Measure target 4: long answers of unknown length."""
    runs: list[Run] = []
    for seed in scope.seeds:
        specs = make("REASON", seed=seed, num_jobs=scope.num_jobs, max_tokens=32_768)
        known = [replace(spec, max_tokens=spec.output_tokens) for spec in specs]
        unknowing = {PRODUCT: _PEERS[PRODUCT], AT_MAX: RESERVES_MAX}
        runs += rounds(stand, "REASON", specs, seed=seed, contenders=unknowing, say=scope.say)
        runs += rounds(stand, "REASON", known, seed=seed, contenders={ORACLE: RESERVES_MAX}, say=scope.say)
    cache = "" if stand.shares_blocks else ", no prefix cache"
    where = f"REASON, N={scope.num_jobs}{cache}"
    ours = list(_valid(runs, PRODUCT))
    for peer, name, goal in ((AT_MAX, "4 speed-up", ">= 1.25"), (ORACLE, "4 of the oracle", ">= 0.95")):
        yield from _row(runs, name, where, _ratios(runs, peer, PRODUCT), goal=goal, peer=peer)
    again = [run.recomputed for run in ours]
    yield from _row(runs, "4 recomputed tokens", where, again, goal="<= 0.02", peer="all tokens")
    failed = [float(sum(not tokens for tokens in run.span.tokens)) for run in ours]
    yield from _row(runs, "4 failed", where, failed, goal="<= 0", peer="all jobs")


def starvation(stand: Stand, scope: Scope) -> Iterator[Row]:
    """Measure target 5: the longest wait for a first token at 0.9 load."""

    def arriving(seed: int) -> list[Spec]:
        specs = make("STARVE", seed=seed, num_jobs=scope.num_jobs, max_tokens=2048)
        gap_s = lower_bound_s(stand.model, specs) / len(specs) / 0.9
        return poisson(specs, seed=seed, mean_gap_s=gap_s)

    runs = contest(stand, "STARVE", arriving, scope=scope, contenders=_peers(PRODUCT, POOL))
    where = f"STARVE at 0.9 load, N={scope.num_jobs}"
    longest = [
        max(ours.span.waits_s) / max(theirs.span.waits_s) for ours, theirs in _pairs(runs, PRODUCT, POOL)
    ]
    yield from _row(runs, "5 longest wait", where, longest, goal="<= 1.1", peer=POOL)
    yield from _row(runs, "speed-up", where, _ratios(runs, POOL, PRODUCT), peer=POOL)


def shares(stand: Stand, scope: Scope) -> Iterator[Row]:
    """Measure target 5: tokens served to two tenants, one with ten times the backlog."""
    for weights in ({"small": 1.0, "large": 1.0}, WEIGHTS):
        contenders = {PRODUCT: Longbatch(weights=weights)}
        jobs_of = partial(two_tenants, num_jobs=scope.num_jobs)
        runs = contest(stand, "two tenants", jobs_of, scope=scope, contenders=contenders)
        wanted = weights["small"] / sum(weights.values())
        off = [
            abs(run.span.served["small"] / sum(run.span.served.values()) / wanted - 1)
            for run in _valid(runs, PRODUCT)
            if any(run.span.served.values())  # not if the small tenant's only job started first
        ]
        where = f"MIX-20, 10:1 backlog, N={scope.num_jobs}, weights {weights['small']:g}:1"
        yield from _row(runs, "5 share off its weight", where, off, goal="<= 0.1", peer="weights")


def _peers(*names: str) -> dict[str, Contender]:
    return {name: _PEERS[name] for name in names}


def _efficiency(runs: Sequence[Run], contender: str, name: str, where: str, goal: str = "") -> Iterator[Row]:
    reached = [run.efficiency for run in _valid(runs, contender)]
    yield from _row(runs, name, where, reached, goal=goal, peer="lower bound")


def _row(
    runs: Sequence[Run], name: str, where: str, values: Sequence[float], *, peer: str, goal: str = ""
) -> Iterator[Row]:
    """Build the row, unless no run counts."""
    if values:
        scale = f"S={runs[0].scale:g}"
        yield judge(name, where, values, peer=peer, scale=scale, seeds=len(values), goal=goal)


def _valid(runs: Iterable[Run], contender: str) -> Iterator[Run]:
    return (run for run in runs if run.contender == contender and run.counts)


def _ratios(runs: Sequence[Run], above: str, below: str) -> list[float]:
    """Return makespans of one divided by those of the other, on the same seeds."""
    return [one.makespan_s / other.makespan_s for one, other in _pairs(runs, above, below)]


def _pairs(runs: Sequence[Run], first: str, second: str) -> Iterator[tuple[Run, Run]]:
    by_seed = {run.seed: run for run in _valid(runs, second)}
    return ((run, by_seed[run.seed]) for run in _valid(runs, first) if run.seed in by_seed)
