"""One run's figures, as a line of a results file."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from bench.gpu.vllm.gauges import Counters, Load, Sample

_CURVE_POINTS: Final = 240  # per run in the results file; a chart shows no more


@dataclass(frozen=True, slots=True)
class Setting:
    """The conditions of a run.

    Attributes:
        shape: of the model, as in `marks.SHAPES`.
        slots: `--max-num-seqs` of the server.
        pool_tokens: of its KV cache.
        note: whatever distinguishes runs of one setting.
    """

    shape: str
    slots: int
    pool_tokens: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One contender with one list.

    Attributes:
        contender: its name.
        listing: `KIND:SEED:JOBS`.
        seconds: from the open gate, before any submission, to the last answer or stored result.
        counters: vLLM's, of this run alone.
        load: `None` for vLLM's offline mode, which has no gauges.
        checks: counts that must be 0: errors, wrong lengths, lost jobs, jobs run twice, unfinished jobs.
        more: figures of one contender alone.
        curve: seconds, running, waiting and KV share, thinned out.
    """

    contender: str
    listing: str
    setting: Setting
    jobs: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    counters: Counters
    load: Load | None
    checks: dict[str, int]
    more: dict[str, Any] = field(default_factory=dict)
    curve: list[list[float]] = field(default_factory=list)

    @property
    def jobs_per_s(self) -> float:
        """Throughput."""
        return self.jobs / self.seconds

    @property
    def is_whole(self) -> bool:
        """True if every job has its one answer of the right length."""
        return not any(self.checks.values())

    def append(self, file: Path) -> None:
        """Append the run to a results file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.write(json.dumps(asdict(self)) + "\n")

    @classmethod
    def load_line(cls, line: str) -> Self:
        """Read a line that `append` wrote."""
        found: dict[str, Any] = json.loads(line)
        found["setting"] = Setting(**found["setting"])
        found["counters"] = Counters(**found["counters"])
        found["load"] = None if found["load"] is None else Load(**found["load"])
        return cls(**found)


def read_runs(file: Path) -> list[Run]:
    """Read a results file."""
    return [Run.load_line(line) for line in file.read_text().splitlines() if line.startswith("{")]


def curve(samples: Sequence[Sample], *, began: float) -> list[list[float]]:
    """Thin samples out to what a chart shows."""
    every = max(1, -(-len(samples) // _CURVE_POINTS))
    return [
        [round(each.at - began, 2), each.running, each.waiting, round(each.kv, 3)]
        for each in samples[::every]
    ]
