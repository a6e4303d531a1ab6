"""Targets 11 to 13: jobs a second and CPU seconds a job with an engine so fast that it is no limit.

Each job has a prompt of 200 tokens and an answer of 8. All are queued before the workers resume; the clock
stops when the last result is stored. Four engines are four workers with a quarter of the slots each, on one
server. With metrics, API and worker are scraped every second; otherwise the worker has no port for them.
"""

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import median

from rich.console import Console

from bench import cpu
from bench.figures import until
from bench.peers.drive import Pool
from bench.report import Row, judge, print_table, write_json
from bench.simulation.workloads import Spec
from bench.stand import trace
from bench.stand.documents import Prompt
from bench.stand.scraper import scraping
from bench.stand.stand import Stand, Worker
from cli.stack.ports import LOOPBACK, free_port
from cli.stack.ready import API, POSTGRES, REDIS, SERVICE_WORKER

SCALE = 5000.0
SLOTS = 64
_SPEC = Spec(prompt_tokens=200, output_tokens=9, max_tokens=256, template="capacity")
_LONGEST_S = 3000.0
_WORKER = "inference workers"
_CLAIMING_POOL = "Celery pool of 4 with claims"
_SCRAPED = ", metrics"


@dataclass(frozen=True, slots=True)
class Load:
    """What to run.

    Attributes:
        num_jobs: of each run.
        seeds: of the prompts; with each, every contender runs once.
        batches: slots of one engine, in two runs each, without and with metrics.
        num_engines: that share `SLOTS` slots in another run; 1: no such run.
    """

    num_jobs: int = 2000
    seeds: Sequence[int] = (0,)
    batches: Sequence[int] = (4, SLOTS)
    num_engines: int = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """A way to run the product.

    Attributes:
        slots: of each engine.
        is_scraped: its metrics are read every second.
    """

    slots: Sequence[int]
    is_scraped: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """One run of the product.

    Attributes:
        rate: jobs a second, from the open gate to the last stored result.
        after: CPU seconds a job from the open gate on, by process; the engine is left out.
        whole: CPU seconds a job of all processes from before the submission on.
        in_vain: requests that reached the engine beyond one a job, as a share.
        is_sound: every job ran once and completed with its whole answer, and every scrape found metrics.
        num_scrapes: of the API and the workers together.
        scrape_seconds: the slowest took so long.
    """

    rate: float
    after: Mapping[str, float]
    whole: float
    in_vain: float
    is_sound: bool
    num_scrapes: int = 0
    scrape_seconds: float = 0.0


def measured(load: Load, *, scale: float = SCALE) -> Iterator[Row]:
    """Measure on a stand of its own, whose pool never binds and which stops afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="longbatch-bench-") as directory,
        Stand(Path(directory), time_scale=scale, max_batch_size=SLOTS) as stand,
    ):
        yield from capacity(stand, load)


def capacity(stand: Stand, load: Load) -> Iterator[Row]:
    """Run the pool and every shape of the product on the same prompts; alternate the order."""
    shapes: dict[str, Shape] = {}
    for batch in load.batches:
        shapes[f"batch {batch}"] = Shape([batch])
        shapes[f"batch {batch}{_SCRAPED}"] = Shape([batch], is_scraped=True)
    if load.num_engines > 1:
        shapes[f"{load.num_engines} engines"] = Shape([SLOTS // load.num_engines] * load.num_engines)
    costs: dict[str, list[Cost]] = {name: [] for name in shapes}
    pool: list[float] = []
    for seed in load.seeds:
        prompts = stand.author.write([_SPEC] * load.num_jobs, seed=seed)
        for name in ["", *shapes][:: -1 if seed % 2 else 1]:
            if not name:
                pool.append(load.num_jobs / Pool(claims=True).run(stand, prompts).seconds)
                _note(f"seed {seed}, {_CLAIMING_POOL}: {pool[-1]:.1f} jobs/s")
                continue
            cost = run(stand, prompts, shapes[name])
            costs[name].append(cost)
            parts = ", ".join(f"{part} {1000 * each:.1f}" for part, each in cost.after.items())
            _note(
                f"seed {seed}, {name}: {cost.rate:.1f} jobs/s, CPU ms a job {parts};"
                f" with its submission {1000 * cost.whole:.1f} in all{'' if cost.is_sound else '; UNSOUND'}"
                f"; {cost.num_scrapes} scrapes, the slowest {1000 * cost.scrape_seconds:.0f} ms"
            )
    yield from _rows(stand, load, costs, pool)


def run(stand: Stand, prompts: Sequence[Prompt], shape: Shape) -> Cost:
    """Queue all jobs, then let a worker for each of its engines go at once."""
    stand.ledger.clear()
    ports = [free_port() for _ in shape.slots] if shape.is_scraped else []
    urls = [f"http://{LOOPBACK}:{port}/metrics" for port in ports]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(stand.worker(_settings(place, each, port)))
            for place, (each, port) in enumerate(zip_longest(shape.slots, ports))
        ]
        ready = f"paused_reason IS NULL AND name LIKE '{_engine_name('%')}'"
        until(lambda: stand.ledger.count("engines", ready) == len(shape.slots), seconds=60)
        for worker in workers:
            worker.freeze()
        first = spent(stand, workers)
        ids = stand.submit(prompts)
        before = spent(stand, workers)
        began = min([worker.thaw() for worker in workers])  # a list: all of them resume
        with scraping([*urls, f"{stand.url('api_url')}/metrics"] if urls else []) as scrapes:
            until(lambda: not stand.ledger.unfinished(), seconds=_LONGEST_S, every=0.25)
        after = spent(stand, workers)
        ended = stand.ledger.last_end(ids)
        time.sleep(0.5)  # until the trace has the last line
        num_sent = len(trace.read(stand.trace, since=began, until=time.monotonic()).requests)
        wanted = [prompt.answer_tokens for prompt in prompts]
        is_complete = stand.ledger.outputs(ids) == wanted and num_sent >= len(ids)
        ran_once = stand.ledger.count("attempts", "true") == len(ids)
        return Cost(
            rate=len(ids) / (ended - began),
            after={name: (after[name] - before[name]) / len(ids) for name in after},
            whole=(sum(after.values()) - sum(first.values())) / len(ids),
            in_vain=num_sent / len(ids) - 1,
            is_sound=is_complete and ran_once and not scrapes.failures,
            num_scrapes=len(scrapes.seconds),
            scrape_seconds=max(scrapes.seconds, default=0.0),
        )


def _settings(place: int, slots: int, metrics_port: int | None) -> dict[str, str]:
    settings = {
        "LONGBATCH_ENGINE__NAME": _engine_name(str(place)),
        "LONGBATCH_ENGINE__MAX_BATCH_SIZE": str(slots),
    }
    return settings | ({"LONGBATCH_METRICS__PORT": str(metrics_port)} if metrics_port else {})


def _engine_name(place: str) -> str:
    return f"capacity-{place}"


def spent(stand: Stand, workers: Sequence[Worker]) -> dict[str, float]:
    """Add up the CPU seconds of the product's processes so far."""
    pids = stand.stack.pids
    found = {name: cpu.of_tree(pids[name] or 0) for name in (POSTGRES, API, SERVICE_WORKER, REDIS)}
    return {_WORKER: sum(cpu.of_tree(worker.pid) for worker in workers), **found}


def _rows(stand: Stand, load: Load, costs: Mapping[str, list[Cost]], pool: list[float]) -> Iterator[Row]:
    where, scale = f"200/8 tokens, N={load.num_jobs}", f"S={stand.time_scale:g}"

    def row(name: str, values: Sequence[float], goal: str = "", peer: str = "") -> Row:
        return judge(name, where, values, goal=goal, peer=peer, scale=scale, seeds=len(load.seeds))

    for name, found in costs.items():
        over = [each.rate / other for each, other in zip(found, pool, strict=True)]
        is_judged = name.startswith("batch")
        title = f"{'11 ' if is_judged else ''}jobs/s over the pool's, {name}"
        yield row(title, over, ">= 1" if is_judged else "", _CLAIMING_POOL)
        yield row(f"jobs/s, {name}", [each.rate for each in found])
        goal = "<= 8" if is_judged else ""
        yield row(f"13 CPU ms a job, {name}", [1000 * sum(each.after.values()) for each in found], goal)
        for part in found[0].after:
            yield row(f"of it: {part}, {name}", [1000 * each.after[part] for each in found])
        goal = "<= 12" if is_judged else ""
        yield row(f"13 with submission, CPU ms a job, {name}", [1000 * each.whole for each in found], goal)
        yield row(f"requests in vain, {name}", [each.in_vain for each in found])
        yield row(f"unsound runs, {name}", [float(sum(not each.is_sound for each in found))], "<= 0")
    yield row("jobs/s of the pool", pool)
    for name in [each for each in costs if each + _SCRAPED in costs]:
        pairs = list(zip(costs[name + _SCRAPED], costs[name], strict=True))
        yield row(f"jobs/s with metrics, {name}", [a.rate / b.rate for a, b in pairs], peer="without")
        cost = [sum(a.after.values()) / sum(b.after.values()) for a, b in pairs]
        yield row(f"CPU a job with metrics, {name}", cost, peer="without")
    one, several = costs.get(f"batch {SLOTS}"), costs.get(f"{load.num_engines} engines")
    if one and several:
        ratio = median(each.rate for each in several) / median(each.rate for each in one)
        yield row(f"12 jobs/s of {load.num_engines} engines", [ratio], ">= 0.9", f"one engine of {SLOTS}")


def _note(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"{text}; load {os.getloadavg()[0]:.1f}", highlight=False)


def main() -> None:
    """Print the table; the exit status is 1 if a run lost a job or ran one twice."""
    parser = argparse.ArgumentParser(prog="python -m bench.capacity", description=__doc__)
    parser.add_argument("--jobs", type=int, default=Load().num_jobs, help="jobs of each run")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--batch", type=int, nargs="*", default=[4, SLOTS], help="slots of one engine")
    parser.add_argument("--engines", type=int, default=4, help=f"share {SLOTS} slots; 1: leave that run out")
    parser.add_argument("--scale", type=float, default=SCALE, help="speed of the engine, in A6000s")
    parser.add_argument("--json", type=Path, help="write the table here")
    asked = parser.parse_args()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    load = Load(asked.jobs, seeds, asked.batch, asked.engines)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves as after Ctrl-C: servers are stopped
    rows = list(measured(load, scale=asked.scale))
    print_table(rows, f"Capacity; load average {os.getloadavg()[0]:.1f} at the end")
    write_json(rows, asked.json)
    if any(row.met is False and row.target.startswith("unsound") for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
