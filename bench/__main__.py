"""`python -m bench`: every target, simulated and on real servers, as one table.

A missed goal only shows in the table. The exit status is 1 if a run did something impossible or forbidden:
lost a job or ran it twice, asked more of the engine than it has, or beat the bound of any policy.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from bench import asking, expansion, streams, submits
from bench import full_targets as full
from bench import targets as simulated
from bench.capacity import Load, measured
from bench.claim_cost import Depth, claim_cost
from bench.draw import draw
from bench.latency import SETTINGS, SMALL, latency
from bench.report import Row, print_table, write_json
from bench.stand.contenders import DIRECT, ONE_AT_A_TIME, POOL, PRODUCT
from bench.stand.contest import Scope
from bench.stand.runs import Runs
from bench.stand.stand import Stand
from bench.targets import PACKED_SIZES

_RESULTS = Path(__file__).with_name("results")
_DRAWN = ("MIX-20 32768", (PRODUCT, POOL))
_SHALLOW = Depth(completed=200_000, queued=50_000, few_queued=5_000, num_claims=200)
_OF_STAND = ("packing", "claims", "latency", "refill", "overcommit", "starvation", "shares")
# Each on servers of its own, with options of its own.
_SMALL = {"expansion": expansion, "submits": submits}
PARTS = ("simulation", *_OF_STAND, "asking", "capacity", "streams", *_SMALL)
_LONG_ONLY = {"overcommit", "starvation", "shares", "asking", "capacity", "streams", *_SMALL}


def main() -> None:
    """Print the table, and write the requested files and the runs."""
    asked = _arguments()
    rows: list[Row] = []
    if "simulation" in asked.parts:
        plan = simulated.Plan(num_jobs=300, seeds=max(3, asked.seeds), first_seed=asked.first_seed)
        rows += simulated.rows(plan)
    runs = Runs()
    if set(asked.parts) & set(_OF_STAND):
        with tempfile.TemporaryDirectory(prefix="longbatch-bench-") as directory:
            stand = Stand(Path(directory), time_scale=asked.scale, environment=SETTINGS)
            with stand:
                rows += _on_real_servers(stand, asked, runs)
            _draw(runs, stand)
    if "asking" in asked.parts:
        rows += _asking(asked, runs)
    if "capacity" in asked.parts:
        seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
        num_jobs = Load().num_jobs if asked.long else asked.jobs
        rows += measured(Load(num_jobs, seeds))
    if "streams" in asked.parts:
        rows += streams.measured(seed=asked.first_seed)
    rows += [row for name, part in _SMALL.items() if name in asked.parts for row in _of_small(part, asked)]
    print_table(
        rows, f"Targets; load average {os.getloadavg()[0]:.1f} at the end; {runs.invalid} runs do not count"
    )
    write_json(rows, asked.json)
    if any(run.faults for run in runs.all):
        raise SystemExit(1)


def _of_small(part: ModuleType, asked: argparse.Namespace) -> Iterator[Row]:
    given = part.options().parse_args([])
    given.seeds, given.first_seed = asked.seeds, asked.first_seed
    with tempfile.TemporaryDirectory(prefix="longbatch-bench-") as directory:
        for each in part.measure(Path(directory), given):
            name = f"{each.name}, {each.unit}" if each.unit else each.name
            yield Row(name, "", each.measured, each.goal, each.met, "", "", asked.seeds)


def _on_real_servers(stand: Stand, asked: argparse.Namespace, runs: Runs) -> Iterator[Row]:
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    runs.file = _RESULTS / ("runs-long.json" if asked.long else "runs.json")
    scope = Scope(num_jobs=asked.jobs, seeds=seeds, say=runs.note)
    if "claims" in asked.parts:
        yield from claim_cost(stand, Depth() if asked.long else _SHALLOW)
    if "latency" in asked.parts:
        yield from latency(stand, SMALL, repeats=100 if asked.long else 40)
    if "refill" in asked.parts:
        yield from full.refill(stand, scope, completed=1_000_000 if asked.long else 200_000)
    if "packing" in asked.parts:
        yield from _packing(stand, asked, scope)
    if "overcommit" in asked.parts:
        yield from full.overcommit(stand, Scope(min(asked.jobs, 60), seeds, runs.note))
    if "starvation" in asked.parts:
        yield from full.starvation(stand, scope)
    if "shares" in asked.parts:
        yield from full.shares(stand, scope)


def _asking(asked: argparse.Namespace, runs: Runs) -> Iterator[Row]:
    workloads = [each for each in asking.WORKLOADS if not asked.workload or each in asked.workload]
    runs.file = _RESULTS / "runs-asking.json"
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    yield from asking.measured(workloads, Scope(min(asked.jobs, 60), seeds, runs.note), scale=asked.scale)


def _packing(stand: Stand, asked: argparse.Namespace, scope: Scope) -> Iterator[Row]:
    sizes = (
        PACKED_SIZES if asked.long else (("MIX-20", 2048), ("MIX-20", 32_768), ("MOON", 2048), ("TINY", 2048))
    )
    for workload, max_tokens in sizes:
        if asked.workload and workload not in asked.workload:
            continue
        peers = {"TINY": (POOL, DIRECT, ONE_AT_A_TIME), "MIX-20": (POOL, DIRECT)}.get(workload, (POOL,))
        if (workload, max_tokens) == ("MIX-20", 32_768):
            peers = (POOL,)
        yield from full.packing(stand, scope, workload, max_tokens, peers=peers)


def _draw(runs: Runs, stand: Stand) -> None:
    """Draw the occupancy of the product and the plain pool on the same jobs."""
    workload, names = _DRAWN
    found = {run.contender: run for run in reversed(runs.all) if run.workload == workload}
    if set(names) <= set(found):
        first = found[PRODUCT]
        draw(
            {name: found[name].occupancy for name in names},
            stand.model.capacity,
            title=f"{first.num_jobs} jobs of {workload}, engine {first.scale:g} times as fast as an A6000",
            file=_RESULTS / "occupancy.png",
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--long", action="store_true", help="all workloads, deep tables, N=300")
    parser.add_argument("--parts", nargs="*", choices=PARTS, help="only these")
    parser.add_argument("--workload", nargs="*", default=(), help="of packing and asking: only these")
    parser.add_argument("--jobs", type=int, help="jobs of each workload on real servers")
    parser.add_argument("--seeds", type=int, default=1, help="seeds of each workload; simulated: 3 at least")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--scale", type=float, default=20, help="how much faster than an A6000 the engine runs"
    )
    parser.add_argument("--json", type=Path, help="write the table here")
    asked = parser.parse_args()
    asked.parts = asked.parts or [part for part in PARTS if asked.long or part not in _LONG_ONLY]
    asked.jobs = asked.jobs or (300 if asked.long else 60)
    return asked


if __name__ == "__main__":
    main()
