"""`python -m bench.streams`: hundreds of streams in one worker, and what memory they take.

Each job has a prompt of 200 tokens. Answers last longer than filling all slots takes, so all slots stream at
once. Memory is the worker's resident set: before the submission, and its peak from then on.
"""

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import cpu
from bench.figures import until
from bench.report import Row, judge, print_table, write_json
from bench.simulation.workloads import Spec
from bench.stand import trace
from bench.stand.stand import Stand

_SPEC = Spec(prompt_tokens=200, output_tokens=600, max_tokens=1024, template="streams")
# Above 3 the local engine sends 8 tokens in a response.
_SCALE = 3.1
_SLOTS = (256, 1000)
_LONGEST_S = 400.0


def streams(slots: int, *, seed: int) -> Iterator[Row]:
    """Measure on a stand of its own, with one engine of so many slots and half as many jobs again."""
    with (
        tempfile.TemporaryDirectory(prefix="longbatch-bench-") as directory,
        Stand(Path(directory), time_scale=_SCALE, max_batch_size=slots) as stand,
    ):
        prompts = stand.author.write([_SPEC] * (slots * 3 // 2), seed=seed)
        with stand.worker({"LONGBATCH_ENGINE__MAX_BATCH_SIZE": str(slots)}) as worker:
            before = cpu.memory_mib(worker.pid, peak=False)
            cpu.clear_peak(worker.pid)
            began, spent = time.monotonic(), cpu.of_tree(worker.pid)
            ids = stand.submit(prompts)
            until(lambda: not stand.ledger.unfinished(), seconds=_LONGEST_S, every=0.25)
            seconds, spent = time.monotonic() - began, cpu.of_tree(worker.pid) - spent
            peak = cpu.memory_mib(worker.pid)
            time.sleep(0.5)  # until the trace has the last line
        seen = trace.read(stand.trace, since=began, until=time.monotonic())
        num_at_once, _ = trace.most_asked(seen.requests, stand.model.capacity)
        wanted = [prompt.answer_tokens for prompt in prompts]
        is_sound = stand.ledger.outputs(ids) == wanted and len(seen.requests) == len(ids)
    where, scale = f"200/600 tokens, N={len(prompts)}", f"S={_SCALE:g}"

    def row(name: str, value: float, goal: str = "") -> Row:
        return judge(f"{name}, {slots} slots", where, [value], goal=goal, peer="", scale=scale, seeds=1)

    yield row("streams at once in one process", num_at_once, f">= {slots}")
    yield row("unsound runs", float(not is_sound), "<= 0")
    yield row("worker, MiB before", before)
    yield row("worker, MiB at its peak, more than before", peak - before)
    yield row("worker, cores used", spent / seconds)


def measured(slots: Sequence[int] = _SLOTS, *, seed: int = 0) -> Iterator[Row]:
    """Measure engines of these sizes, one after the other."""
    for each in slots:
        yield from streams(each, seed=seed)


def main() -> None:
    """Print the table; the exit status is 1 if a run lost a job or ran one twice."""
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description=__doc__)
    parser.add_argument("--slots", type=int, nargs="*", default=_SLOTS, help="of the engine of each run")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts")
    parser.add_argument("--json", type=Path, help="write the table here")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves as after Ctrl-C: servers are stopped
    rows = list(measured(asked.slots, seed=asked.seed))
    print_table(rows, f"Streams; load average {os.getloadavg()[0]:.1f} at the end")
    write_json(rows, asked.json)
    if any(row.met is False and row.target.startswith("unsound") for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
