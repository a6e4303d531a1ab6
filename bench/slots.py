"""`python -m bench.slots`: the share of slots empty while work waits, and how long chat users wait meanwhile.

Each size of engine runs the same jobs without a waiting room and with the default one, in an order that turns
round from seed to seed. The span begins when all slots are first taken and ends when the last job reaches the
engine. An interactive job comes from time to time; its wait is from its submission to its first iteration.
"""

import argparse
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.figures import until
from bench.report import Row, judge, print_table, write_json
from bench.simulation.workloads import Spec
from bench.stand import trace
from bench.stand.stand import Stand
from jobs.engines.capacity import room_of

_LONGEST_S = 900.0
_PROMPT, _OUTPUT, _SPREAD, _MOST = 200, 256, 100, 1024
_CHAT = Spec(prompt_tokens=300, output_tokens=32, max_tokens=64, template="chat")
NO_ROOM, ROOM = "no waiting room", "waiting room"


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        seconds: from the first request to the last result.
        empty: share of the slots that ran nothing while work waited.
        most: requests on the engine at once.
        lost: jobs without the right number of tokens.
        waits_s: of the interactive jobs.
    """

    seconds: float
    empty: float
    most: int
    lost: int
    waits_s: list[float] = field(default_factory=list)


def empty_share(requests: Sequence[trace.Request], slots: int) -> float:
    """Return the share of slot seconds without a request, from the first full batch to the last arrival."""
    moments = sorted([(each.began, 1) for each in requests] + [(each.ended, -1) for each in requests])
    until_s = max(each.came for each in requests)
    running, since, last, used = 0, None, 0.0, 0.0
    for at, change in moments:
        if since is not None:
            used += min(running, slots) * (min(at, until_s) - last)
        running += change
        if since is None and running >= slots:
            since = at
        last = min(at, until_s)
        if at >= until_s:
            break
    if since is None or until_s <= since:
        raise ValueError("the slots were never all taken while work waited: more jobs are needed")
    return 1 - used / (slots * (until_s - since))


def run(stand: Stand, slots: int, room: int, *, seed: int, num_jobs: int, chat_every_s: float) -> Run:
    """Run the jobs with a waiting room of this size."""
    lengths = np.random.default_rng(seed).normal(_OUTPUT, _SPREAD, num_jobs).clip(16, _MOST)
    specs = [Spec(_PROMPT, int(each), _MOST, template="decode") for each in lengths]
    prompts = stand.author.write(specs, seed=seed + 1000 * room)
    stand.ledger.clear()
    settings = {"LONGBATCH_ENGINE__MAX_BATCH_SIZE": str(slots), "LONGBATCH_ENGINE__WAITING_ROOM": str(room)}
    with stand.worker(settings) as worker:
        worker.freeze()
        ids = stand.submit(prompts)
        began = worker.thaw()
        with _chat(stand, seed=seed, every_s=chat_every_s) as asked:
            until(lambda: not stand.ledger.unfinished(), seconds=_LONGEST_S, every=0.25)
        ended = time.monotonic()
        time.sleep(0.5)  # until the trace has the last line
    seen = trace.read(stand.trace, since=began, until=time.monotonic())
    wanted = [prompt.answer_tokens for prompt in prompts]
    lost = sum(got != want for got, want in zip(stand.ledger.outputs(ids), wanted, strict=True))
    chat = sorted(each.began for each in seen.requests if each.prompt_tokens == _CHAT.prompt_tokens)
    waits = [at - sent for sent, at in zip(asked, chat, strict=False)]
    most, _ = trace.most_asked(seen.requests, stand.model.capacity)
    return Run(ended - began, empty_share(seen.requests, slots), most, lost, waits)


@contextmanager
def _chat(stand: Stand, *, seed: int, every_s: float) -> Iterator[list[float]]:
    """Ask for a chat completion from time to time, and record when; the last ones are awaited."""
    asked: list[float] = []
    done = threading.Event()
    gaps = np.random.default_rng(seed)
    model = stand.http.get("/v1/models").raise_for_status().json()["data"][0]["id"]

    def ask(text: str) -> None:
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 64}
        stand.http.post("/v1/chat/completions", json=body).raise_for_status()

    def keep_asking() -> None:
        with ThreadPoolExecutor(64) as callers:
            while not done.wait(float(gaps.exponential(every_s))):
                (prompt,) = stand.author.write([_CHAT], seed=100_000 + seed * 1000 + len(asked))
                asked.append(time.monotonic())
                callers.submit(ask, prompt.text)

    thread = threading.Thread(target=keep_asking, name="chat")
    if every_s:
        thread.start()
    try:
        yield asked
    finally:
        done.set()
        if every_s:
            thread.join()


def measured(asked: argparse.Namespace) -> Iterator[Row]:
    """Measure engines of these sizes, one after the other."""
    for slots in asked.slots:
        rooms = {NO_ROOM: 0, ROOM: room_of(slots, counts_waiting=True)}
        runs: dict[str, list[Run]] = {name: [] for name in rooms}
        with (
            tempfile.TemporaryDirectory(prefix="longbatch-bench-") as directory,
            Stand(Path(directory), time_scale=asked.scale, max_batch_size=slots) as stand,
        ):
            for number, seed in enumerate(range(asked.first_seed, asked.first_seed + asked.seeds)):
                for name in sorted(rooms, reverse=bool(number % 2)):
                    found = run(
                        stand,
                        slots,
                        rooms[name],
                        seed=seed,
                        num_jobs=slots * asked.rounds,
                        chat_every_s=asked.chat,
                    )
                    runs[name].append(found)
        yield from _rows(slots, rooms, runs, asked)


def _rows(
    slots: int, rooms: dict[str, int], runs: dict[str, list[Run]], asked: argparse.Namespace
) -> Iterator[Row]:
    where, goal = f"200/256 tokens, N={slots * asked.rounds}", "<= 0.01" if slots < 16 else "<= 0.02"
    for name, room in rooms.items():
        of = f"{slots} slots, {name} ({room})"

        def row(what: str, values: list[float], goal: str = "", *, of: str = of) -> Row:
            return judge(
                f"{what}, {of}",
                where,
                values,
                goal=goal,
                peer="",
                scale=f"S={asked.scale:g}",
                seeds=asked.seeds,
            )

        yield row("3 share of slots empty", [each.empty for each in runs[name]], goal if name == ROOM else "")
        yield row("seconds", [each.seconds for each in runs[name]])
        yield row("requests at once", [float(each.most) for each in runs[name]], f"<= {slots + room}")
        yield row("jobs lost", [float(each.lost) for each in runs[name]], "<= 0")
        waits = [wait for each in runs[name] for wait in each.waits_s]
        if waits:
            for percent in (50, 99):
                yield row(f"interactive wait p{percent}, s", [float(np.percentile(waits, percent))])


def main() -> None:
    """Print the table; the exit status is 1 if a job was lost or the engine got too many requests."""
    parser = argparse.ArgumentParser(prog="python -m bench.slots", description=__doc__)
    parser.add_argument(
        "--slots", type=int, nargs="*", default=(4, 64, 256), help="of the engine of each run"
    )
    parser.add_argument(
        "--scale", type=float, default=1, help="how much faster than an A6000 the engine runs"
    )
    parser.add_argument("--rounds", type=int, default=6, help="jobs for each slot")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--chat", type=float, default=0, help="seconds between interactive jobs; 0: none come"
    )
    parser.add_argument("--json", type=Path, help="write the table here")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves as after Ctrl-C: servers are stopped
    rows = list(measured(asked))
    print_table(rows, f"Empty slots; load average {os.getloadavg()[0]:.1f} at the end")
    write_json(rows, asked.json)
    if any(row.met is False and not row.target.startswith("3 ") for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
