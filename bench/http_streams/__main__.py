"""`python -m bench.http_streams`: a full vLLM at its defaults, without a GPU.

A stand-in streams each token of its 1,024 running answers as an event of its own, 20 times a second. A
client that sends everything at once runs a list on it (DECODE: 200 tokens in, about 256 out), and then
Longbatch runs the same list. The table has the seconds of both and the fewest possible, the share of the
slots taken while something waits, the CPU of each process, and the worker's CPU for one token.

A run counts only if the stand-in kept its pace: the table shows by how much its steps came late.
"""

import argparse
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from bench.gpu.vllm.lists import MAX_TOKENS, Listing
from bench.http_streams.engine import TOKENS_PER_BLOCK
from bench.http_streams.run import CLIENT, LONGBATCH, Run, Shape, both, least_steps
from bench.report import Row, judge, print_table, write_json
from bench.stand.documents import Author
from cli.stack.ready import INFERENCE_WORKER
from jobs.open_files import RESERVE, raise_limit
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import tokenizer_directory

_PROMPT_TOKENS: Final = 200
_LEAST_BLOCKS: Final = -(-(_PROMPT_TOKENS + MAX_TOKENS) // TOKENS_PER_BLOCK)  # of one request
_IN_PACE: Final = "<= 0.02"  # otherwise the machine was too slow for the stand-in
_UNSOUND: Final = "jobs without one right answer"


def rows(runs: Sequence[Run], lengths: Sequence[int], shape: Shape, *, seed: int) -> Iterator[Row]:
    """Write the table of both contenders."""
    limit_s = least_steps(lengths, shape.slots) * shape.step_s
    where = f"DECODE:{seed}, N={len(lengths)}, {shape.slots} slots"
    scale = f"{shape.step_s * 1000:g} ms a step"

    def row(name: str, value: float, *, goal: str = "", peer: str = "") -> Row:
        return judge(name, where, [value], goal=goal, peer=peer, scale=scale, seeds=1)

    yield row("limit, seconds", limit_s)
    for run in runs:
        yield row(f"{run.contender}: seconds", run.seconds)
        yield row(f"{run.contender}: limit over its seconds", limit_s / run.seconds, peer="limit")
        yield row(f"{run.contender}: share of slots taken while jobs wait", run.full)
        yield row(f"{run.contender}: late steps, share of the time", run.late, goal=_IN_PACE)
        for name, spent in run.cpu_s.items():
            yield row(f"{run.contender}: CPU seconds, {name}", spent)
        yield row(f"{run.contender}: {_UNSOUND}", run.faults, goal="<= 0")
    by_name = {run.contender: run for run in runs}
    client, longbatch = by_name[CLIENT], by_name[LONGBATCH]
    yield row("client's seconds over longbatch's", client.seconds / longbatch.seconds, peer=CLIENT)
    of_worker = longbatch.cpu_s[INFERENCE_WORKER]
    yield row("worker, CPU microseconds a token", 1e6 * of_worker / longbatch.num_tokens)


def number(kind: Callable[[str], float], least: float, most: float) -> Callable[[str], float]:
    """Make a parser of numbers within these bounds."""

    def parse(text: str) -> float:
        try:
            found = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a number (got {text!r})") from None
        if not least <= found <= most:
            raise argparse.ArgumentTypeError(f"must be from {least:,} to {most:,} (got {text})")
        return found

    return parse


def options() -> argparse.ArgumentParser:
    """Make the parser."""
    parser = argparse.ArgumentParser(prog="python -m bench.http_streams", description=__doc__)
    add = parser.add_argument
    add("--slots", type=number(int, 1, 4096), default=1024, help="requests that the engine runs at once")
    add("--step", type=number(float, 0.005, 1.0), default=0.05, help="seconds of one step")
    add(
        "--blocks",
        type=number(int, _LEAST_BLOCKS, 10**6),
        default=57_488,
        help=f"of {TOKENS_PER_BLOCK} tokens, in its KV cache",
    )
    add("--jobs", type=number(int, 2, 20_000), default=2000, help="of the list; more than slots")
    add("--seed", type=number(int, 0, 10**6), default=81, help="of the list")
    add("--patience", type=number(float, 1.0, 3600.0), default=300.0, help="seconds for each contender")
    add("--json", type=Path, help="write the table here")
    return parser


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the arguments, and raise the limit of open files.

    Raises:
        SystemExit: an argument is wrong, or the system allows too few open files.
    """
    parser = options()
    asked = parser.parse_args(arguments)
    if asked.jobs <= asked.slots:
        parser.error(f"argument --jobs: must be more than --slots, {asked.slots} (got {asked.jobs})")
    needed, available = asked.jobs + RESERVE, raise_limit()  # the client opens a connection for each job
    if available < needed:
        parser.error(
            f"--jobs {asked.jobs} needs {needed} open files, and the hard limit is {available}:"
            " raise it (ulimit -Hn, LimitNOFILE=), or lower --jobs"
        )
    return asked


def main() -> None:
    """Print the table; the exit status is 1 if a job has not one right answer."""
    asked = parsed()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves as after Ctrl-C: servers are stopped
    shape = Shape(slots=asked.slots, step_s=asked.step, blocks=asked.blocks)
    author = Author(Tokenizer.load(str(tokenizer_directory(None))))
    prompts = author.write(Listing("DECODE", asked.seed, asked.jobs).specs(), seed=asked.seed)
    with tempfile.TemporaryDirectory(prefix="longbatch-bench-") as directory:
        Path(directory).chmod(0o711)  # under root, Postgres runs as another user
        runs = both(Path(directory), shape, prompts, patience_s=asked.patience)
    lengths = [each.spec.output_tokens for each in prompts]
    found = list(rows(runs, lengths, shape, seed=asked.seed))
    print_table(found, f"HTTP streams; load average {os.getloadavg()[0]:.1f} at the end")
    write_json(found, asked.json)
    if any(run.faults for run in runs):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
