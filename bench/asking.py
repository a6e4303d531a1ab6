"""Targets 4, 16 and 17 on real servers, on an engine that reuses what it has read.

Every contender gets texts of its own, of the same lengths: otherwise each would find what the one before it
has read.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.full_targets import overcommit
from bench.peers.drive import Pool
from bench.report import Row, judge
from bench.simulation.shared_documents import least_prefill
from bench.simulation.workloads import Spec
from bench.stand.contenders import POOL, PRODUCT, Contender, Longbatch
from bench.stand.contest import Run, Scope, rounds
from bench.stand.stand import Stand
from bench.targets import DOCUMENTS

REASON = "REASON"
WORKLOADS = (*DOCUMENTS, REASON)
CREDITS = "LONGBATCH_ENGINE__CREDITS_REUSE"
UNCREDITED = "longbatch, shared blocks not credited"


def measured(workloads: Sequence[str], scope: Scope, *, scale: float) -> Iterator[Row]:
    """Measure on a stand of its own, which stops afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="longbatch-bench-") as directory,
        Stand(Path(directory), time_scale=scale, environment={CREDITS: "true"}, shares_blocks=True) as stand,
    ):
        for workload in workloads:
            if workload == REASON:
                yield from overcommit(stand, scope)
            else:
                yield from documents(stand, scope, workload, DOCUMENTS[workload])


def documents(
    stand: Stand, scope: Scope, workload: str, questions: Callable[..., list[Spec]]
) -> Iterator[Row]:
    """Measure targets 16 and 17: many questions about few documents, question by question."""
    contenders: Mapping[str, Contender] = {
        PRODUCT: Longbatch(),
        UNCREDITED: Longbatch({CREDITS: "false"}),
        POOL: Pool(),
    }
    runs: list[Run] = []
    least: dict[int, int] = {}
    for seed in scope.seeds:
        specs = questions(seed=seed)
        least[seed] = least_prefill(specs)
        runs += rounds(stand, workload, specs, seed=seed, contenders=contenders, say=scope.say)
    by_name = {
        name: {run.seed: run for run in runs if run.contender == name and run.counts} for name in contenders
    }
    row = partial(judge, scale=f"S={stand.time_scale:g}")
    for name, goals in ((PRODUCT, (">= 0.95", ">= 4", "<= 1.03")), (UNCREDITED, ("", "", ""))):
        ours, theirs = by_name[name], by_name[POOL]
        where = workload if name == PRODUCT else f"{workload}, shared blocks not credited"
        shown = {
            "16 of the limit": ([run.efficiency for run in ours.values()], "read once"),
            "16 speed-up": (
                [theirs[seed].makespan_s / run.makespan_s for seed, run in ours.items() if seed in theirs],
                POOL,
            ),
            "17 tokens prefilled": (
                [run.read_tokens / least[seed] for seed, run in ours.items()],
                "read once",
            ),
        }
        for (target, (values, peer)), goal in zip(shown.items(), goals, strict=True):
            if values:
                yield row(target, where, values, peer=peer, seeds=len(values), goal=goal)
