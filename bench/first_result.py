"""`python -m bench.first_result`: the first result and the end of `longbatch summarize FOLDER`.

A folder of documents, the first of which is very long, is summarized on the real stack with the stand-in:
"before", each document starts as soon as it is uploaded, in the order of names; "after", as the command does.
The shortest document is summarized alone first. Every run has its own texts, so that no engine knows them.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median
from threading import Thread

import psycopg

from bench.figures import running_stack
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.stack import Stack
from jobs.prompts.tokenizer_files import tokenizer_directory
from longbatch import Client, calls
from longbatch.documents.opening import Opening
from longbatch.documents.run import DocumentRun
from longbatch.documents.sources import SourceFile, Survey, find
from longbatch.documents.trees import Trees
from longbatch.runs import DEFAULT_CONCURRENCY

_CHARS_PER_TOKEN = 4.3  # of the texts below
_LONG_TOKENS = 200_000
_SHORT_TOKENS = 600
_REFERENCE = "\n\n".join(topics[name] for name in sorted(topics))


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from the start of a run to its first and to its last result."""

    first: float
    makespan: float


def main() -> None:
    """Print the times of each speed of the engine, before and after."""
    asked = _arguments()
    for scale in asked.scales:
        engine = EngineOptions(mode="extractive", tokenizer_dir=tokenizer_directory(None), time_scale=scale)
        with (
            tempfile.TemporaryDirectory(prefix="longbatch-first-") as directory,
            running_stack(Path(directory) / "stack", engine) as (stack, _),
            Client(stack.urls.api_url, stack.urls.api_key) as client,
        ):
            _measure(stack, client, Path(directory), asked, scale=scale)


def _measure(
    stack: Stack, client: Client, directory: Path, asked: argparse.Namespace, *, scale: float
) -> None:
    alone = directory / "alone"
    _write(alone, "alone", [_SHORT_TOKENS])
    _run(client, alone, opens=True)
    with psycopg.connect(stack.urls.database_url or "") as database:
        (engine_seconds,) = database.execute(_ENGINE_SECONDS).fetchone() or (0.0,)
    found: dict[bool, list[Times]] = {False: [], True: []}
    for number in range(asked.repeats):
        for opens in (False, True) if number % 2 == 0 else (True, False):  # ABBA
            folder = directory / f"{number}-{opens}"
            _write(folder, folder.name, _sizes(asked.documents, seed=number))
            found[opens].append(_run(client, folder, opens=opens))
    before, after = _median(found[False]), _median(found[True])
    limit = 2 * float(engine_seconds) + 1
    sys.stdout.write(
        f"{asked.documents} documents, engine at {scale:g} times an A6000, {asked.repeats} runs each,"
        f" load average {os.getloadavg()[0]:.1f}; shortest alone {engine_seconds:.2f} s on the engine\n"
        f"{'':<10}{'first result':>14}{'makespan':>12}\n"
        f"{'before':<10}{before.first:>12.1f} s{before.makespan:>10.1f} s\n"
        f"{'after':<10}{after.first:>12.1f} s{after.makespan:>10.1f} s\n"
        f"{'goal':<10}{limit:>12.1f} s{1.02 * before.makespan:>10.1f} s\n"
    )
    sys.stdout.flush()


_ENGINE_SECONDS = """
    SELECT extract(epoch FROM finalized_at - started_at)::float8 FROM jobs
    WHERE summary_id IS NOT NULL AND state = 'completed' ORDER BY id LIMIT 1
"""


def _run(client: Client, folder: Path, *, opens: bool) -> Times:
    """Summarize the folder; with `opens` as the command does, otherwise each document at once."""
    began, ends = time.monotonic(), list[float]()
    survey, trees = Survey(), Trees()
    for source in find([str(folder)]):
        survey.add(source)
    num_sampled = min(survey.num_documents, DEFAULT_CONCURRENCY)
    opening = Opening(trees, {}, survey, num_sampled) if opens else None
    model = str(client.run(calls.version())["model"])
    run = DocumentRun(trees, {}, model=model, opening=opening)
    items: Sequence[SourceFile] = [*find([str(folder)])]
    if opening is not None:
        items = [source for _, source in survey.ordered(items)]
        Thread(target=client.run, args=(opening.estimate(),), daemon=True).start()
    for _, (ended, *_) in client.run_each(run.process, items, concurrency=DEFAULT_CONCURRENCY):
        if ended.is_completed:
            ends.append(time.monotonic() - began)
    if len(ends) != len(items):
        raise SystemExit(f"{len(items) - len(ends)} of {len(items)} documents did not complete")
    return Times(ends[0], ends[-1])


def _sizes(num_documents: int, *, seed: int) -> list[int]:
    """Draw lengths in tokens: one very long, one short, and others as reports and papers have."""
    draw = random.Random(seed)  # noqa: S311  # repeatable
    others = [min(40_000, max(1000, round(draw.lognormvariate(8.7, 0.8)))) for _ in range(num_documents - 2)]
    return [_LONG_TOKENS, *others, _SHORT_TOKENS]


def _write(folder: Path, name: str, sizes: Sequence[int]) -> None:
    folder.mkdir()
    for place, num_tokens in enumerate(sizes):
        num_chars, start = int(num_tokens * _CHARS_PER_TOKEN), place * 7919
        text = _REFERENCE * (2 + num_chars // len(_REFERENCE))
        (folder / f"{place:02}.txt").write_text(f"{name} {place}.\n\n{text[start : start + num_chars]}")


def _median(runs: Sequence[Times]) -> Times:
    return Times(median(each.first for each in runs), median(each.makespan for each in runs))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.first_result", description=__doc__)
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--scales", type=float, nargs="+", default=[1, 8], help="times an A6000's speed")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each order")
    return parser.parse_args()


if __name__ == "__main__":
    main()
