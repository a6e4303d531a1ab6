"""`python -m bench.simulate`: the table of targets in virtual time, and the engine's occupancy."""

import argparse
import json
from pathlib import Path

from bench.report import print_table, write_json
from bench.simulation.engine_model import A6000
from bench.simulation.occupancy import columns
from bench.simulation.policies import FCFS, LONGBATCH, policies
from bench.simulation.simulator import Conditions, simulate
from bench.simulation.workloads import WORKLOADS, make
from bench.targets import DOCUMENTS, Plan, rows


def main() -> None:
    """Print the table and write the requested files; exit 1 if a target was missed."""
    asked = _arguments()
    plan = Plan(
        num_jobs=asked.jobs, seeds=asked.seeds, first_seed=asked.first_seed, only=frozenset(asked.workload)
    )
    found = list(rows(plan))
    print_table(found, f"Simulated: A6000 roofline, {plan.num_jobs} jobs, medians of {plan.seeds} seeds")
    write_json(found, asked.json)
    if asked.occupancy:
        asked.occupancy.write_text(json.dumps(occupancy(plan.num_jobs)) + "\n")
    if any(row.met is False for row in found):
        raise SystemExit(1)


def occupancy(num_jobs: int) -> dict[str, dict[str, list[float]]]:
    """Simulate one MIX-20 with the product and the plain pool; return occupancies."""
    specs = make("MIX-20", seed=0, num_jobs=num_jobs, max_tokens=2048)
    named = policies()
    return {
        name: columns(simulate(specs, named[name], Conditions(A6000)).occupancy) for name in (LONGBATCH, FCFS)
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.simulate", description=__doc__)
    parser.add_argument(
        "--workload", nargs="*", choices=(*WORKLOADS, *DOCUMENTS), default=(), help="only these"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="not tuned on from 5 on")
    parser.add_argument("--jobs", type=int, default=300, help="jobs of each workload")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--occupancy", type=Path, help="write slots and blocks over time to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
