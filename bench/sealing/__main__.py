"""`python -m bench.sealing`: what encryption of content costs a job, with and without it (A B B A).

Each round submits, claims, loads, saves and completes jobs in sets, as the API and an inference worker do, in
this process and on a Postgres of its own. Measured is the CPU time of this process, which seals and opens;
and, alone, what a value costs.
"""

import argparse
import secrets
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table
from sqlalchemy import delete
from sqlalchemy.orm import Session, sessionmaker

from bench import figures
from bench.figures import MODEL
from jobs import database, leases, lifecycle, submission
from jobs.checkpoints import Output
from jobs.engines import registry
from jobs.engines.capacity import Capacity
from jobs.models import DEFAULT_TENANT, Job
from jobs.prompts import store
from jobs.prompts.store import CountedPrompt, NewText
from jobs.prompts.tokenizer import pack_ids
from jobs.scheduling import tick
from jobs.scheduling.output_history import History
from jobs.scheduling.sizing import ClaimPolicy
from jobs.sealing.content import PLAIN, ContentSealer
from jobs.settings import DatabaseSettings, JobSettings
from jobs.states import FinishReason
from jobs.submission import Submitter
from jobs.submission.job_specs import JobSpec
from worker.inference.outcome import Finished, RunEnd, write_outcome

_ENGINE: Final = "bench-engine"
_SET: Final = 64  # jobs in a transaction
_COMPLETE: Final = RunEnd(Finished(FinishReason.STOP), engine_is_done=True)
_CAPACITY: Final = Capacity(
    max_batch_size=_SET, max_blocks=2**20, tokens_per_block=64, max_input_len=96_000, max_seq_len=131_072
)
_POLICY: Final = ClaimPolicy(
    lease=timedelta(minutes=10), max_rescues=2, history=History(keep=timedelta(seconds=2))
)
_KEY: Final = secrets.token_bytes(32)
_SEALS: Final = ContentSealer([_KEY], seals=True)
_NAMES: Final = {"plain": PLAIN, "sealed": _SEALS}
_VALUES: Final = (100, 1_000, 10_000, 100_000)  # bytes
_TIMES: Final = 5  # a value is timed so often, of which the least counts

Parts = dict[str, float]


class _Counter:
    """Has counted all prompts."""

    fingerprint = "bench"

    def count_prompt(self, canonical: str, *, limit: int | None = None) -> CountedPrompt:
        raise NotImplementedError


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.sealing", description=__doc__)
    parser.add_argument("--jobs", type=int, default=640, help="in each round")
    parser.add_argument("--rounds", type=int, default=4, help="of each kind, at least 2")
    parser.add_argument("--prompt-tokens", type=int, default=2_000)
    parser.add_argument("--output-tokens", type=int, default=500)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory, figures.servers(Path(directory), pool_size=2) as servers:
        settings = DatabaseSettings(url=SecretStr(servers.postgres_url))
        engines = {name: database.make_engine(settings, sealer=each) for name, each in _NAMES.items()}
        sessions = {name: database.make_sessions(each) for name, each in engines.items()}
        measured: dict[str, list[Parts]] = defaultdict(list)
        for name in _order(options.rounds):
            measured[name].append(_round(sessions[name], options))
        for each in engines.values():
            each.dispose()
    _print(measured, options)


def _order(rounds: int) -> Iterator[str]:
    """Yield the kinds: first each once to warm up, then A B B A."""
    for number in range(rounds):
        yield from ("plain", "sealed") if number % 2 == 0 else ("sealed", "plain")


def _round(sessions: sessionmaker[Session], options: argparse.Namespace) -> Parts:
    """Run jobs from submission to result; return milliseconds of CPU a job by what was done."""
    rng = np.random.default_rng(0)
    parts: Parts = defaultdict(float)
    with database.transaction(sessions) as session:
        registry.register(session, _ENGINE, MODEL, _CAPACITY, now=database.database_now(session))
    for _ in range(options.jobs // _SET):
        specs = [_spec(rng, options.prompt_tokens) for _ in range(_SET)]
        output = _output(rng, options.output_tokens)
        with _timed(sessions, parts, "submit") as session:
            submission.submit(session, specs, Submitter(DEFAULT_TENANT, _CAPACITY))
        with _timed(sessions, parts, "claim and load") as session:
            started = tick.tick(session, _ENGINE, _POLICY, ended=[], limit=_SET).claims
            text_ids = [each.job.text_id for each in started if each.job.text_id is not None]
            loaded = store.counts_of(store.read(session, text_ids).values(), _Counter())
        if len(loaded) != _SET:
            raise RuntimeError(f"{len(loaded)} of {_SET} jobs started")
        held = [each.lease for each in started]
        with _timed(sessions, parts, "checkpoint") as session:
            leases.checkpoint_all(session, held, [output] * len(held))
        with _timed(sessions, parts, "record") as session:
            lifecycle.finish(
                session, [write_outcome(each, _COMPLETE, output, settings=JobSettings()) for each in held]
            )
    with database.transaction(sessions) as session:
        session.execute(delete(Job))
    return {name: seconds * 1000 / options.jobs for name, seconds in parts.items()}


@contextmanager
def _timed(sessions: sessionmaker[Session], parts: Parts, name: str) -> Iterator[Session]:
    began = time.process_time()
    with database.transaction(sessions) as session:
        yield session
    parts[name] += time.process_time() - began


def _spec(rng: np.random.Generator, num_tokens: int) -> JobSpec:
    ids = rng.integers(0, 128_000, num_tokens)
    words = " ".join(f"{each:x}" for each in ids)
    counted = CountedPrompt(pack_ids(ids.astype(np.int32)), num_tokens, _Counter.fingerprint)
    text = NewText(f'[{{"role":"user","content":"{words}"}}]', counted)
    return JobSpec(text=text, task="generate", model=MODEL, max_tokens=1024)


def _output(rng: np.random.Generator, num_tokens: int) -> Output:
    ids = rng.integers(0, 128_000, num_tokens)
    text = " ".join(f"{each:x}" for each in ids)
    return Output(text=text, ids=ids.tolist(), num_tokens=num_tokens)


def _print(measured: Mapping[str, Sequence[Parts]], options: argparse.Namespace) -> None:
    size = f"prompts of {options.prompt_tokens:,} tokens, outputs of {options.output_tokens:,}"
    table = Table(
        "ms of CPU a job", "plain", "sealed", "ratio", caption=f"{size}; medians of rounds but the first"
    )
    for part in (*measured["plain"][0], "all"):
        plain, sealed = (_median(measured[name], part) for name in _NAMES)
        table.add_row(part, f"{plain:.3f}", f"{sealed:.3f}", f"{sealed / plain:.2f}")
    values = Table("microseconds a value", *(f"{size:,} bytes" for size in _VALUES))
    for name, work in _works().items():
        values.add_row(name, *(f"{1e6 * _least(work, size):.2f}" for size in _VALUES))
    console = Console()
    console.print(table)
    console.print(values)


def _median(rounds: Sequence[Parts], part: str) -> float:
    return median(sum(each.values()) if part == "all" else each[part] for each in rounds[1:])


def _works() -> dict[str, Callable[[bytes], object]]:
    sealed = {size: _SEALS.seal_bytes(bytes(size), "") for size in _VALUES}
    as_text = {size: _SEALS.seal_text("x" * size, "") for size in _VALUES}
    return {
        "write bytes, plain": lambda content: PLAIN.seal_bytes(content, ""),
        "read bytes, plain": lambda content: PLAIN.open_bytes(content, ""),
        "seal bytes": lambda content: _SEALS.seal_bytes(content, ""),
        "open bytes": lambda content: _SEALS.open_bytes(sealed[len(content)], ""),
        "seal text": lambda content: _SEALS.seal_text("x" * len(content), ""),
        "open text": lambda content: _SEALS.open_text(as_text[len(content)], ""),
    }


def _least(work: Callable[[bytes], object], size: int) -> float:
    """Time the work on so many bytes; seconds."""
    content, number = bytes(size), max(10, 2_000_000 // (size + 500))
    found = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        for _ in range(number):
            work(content)
        found.append((time.perf_counter() - began) / number)
    return min(found)


if __name__ == "__main__":
    main()
