"""The runs on real servers: printed as they end, and stored in short form as JSON."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console

from bench.stand.contest import Run


@dataclass(slots=True)
class Runs:
    """All runs so far.

    Attributes:
        file: where to store them; None: nowhere.
    """

    file: Path | None = None
    all: list[Run] = field(default_factory=list)

    @property
    def invalid(self) -> int:
        """Number of runs that do not count."""
        return sum(not run.counts for run in self.all)

    def note(self, run: Run) -> None:
        """Print and store the run."""
        self.all.append(run)
        broken = "".join(f"; does not count: {each}" for each in (*run.faults, *run.noise))
        Console(stderr=True, soft_wrap=True).print(
            f"{run.workload}, N={run.num_jobs}, seed {run.seed}, S={run.scale:g}, {run.contender}:"
            f" {run.makespan_s:.1f} s, E {run.efficiency:.3f}, engine {run.engine_cpu:.1%} of a core,"
            f" load {run.load:.1f}{broken}"
        )
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps([_record(each) for each in self.all], indent=1) + "\n")


def _record(run: Run) -> dict[str, object]:
    """Build the stored form of a run."""
    found: dict[str, object] = {
        name: getattr(run, name)
        for name in ("contender", "workload", "seed", "num_jobs", "scale", "faults", "noise", "load")
    }
    numbers = {
        "makespan_s": run.makespan_s,
        "lower_bound_s": run.bound_s,
        "efficiency": run.efficiency,
        "engine_cpu": run.engine_cpu,
        "lost_s": run.lost_s,
        "read_tokens": run.read_tokens,
        "recomputed": run.recomputed,
    }
    if run.refills_s:
        came = [gap for gap, _ in run.refills_s]
        numbers |= {f"refill_p{p}_ms": 1000 * float(np.percentile(came, p)) for p in (50, 99)}
    if run.span.waits_s:
        numbers["longest_wait_s"] = max(run.span.waits_s)
    return found | {name: round(value, 4) for name, value in numbers.items()}
