"""`python -m bench.clients`: AIPerf, genai-bench and `longbatch bench` side by side.

Each sends the same load to llama-server itself and to Longbatch's API in front of it, one after the other, in
rounds of alternating order.
Run `scripts/setup_bench_clients.sh` first.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.clients.tools import ALL_TOOLS, TOOLS, Figures, LoadSize, Target, Tool
from bench.figures import running_stack
from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf

_CONTEXT: Final = 2048
_RUN_SECONDS: Final = 900.0
_OURS: Final = ("LONGBATCH_", "HF_", "TRANSFORMERS_", "PYTHON")  # variables of this process that no tool gets


def main() -> None:
    """Run each tool against both servers, and print what they measured."""
    options = _arguments()
    if not TOOLS.is_dir():
        raise SystemExit("there is no .venv-bench-clients: run scripts/setup_bench_clients.sh")
    size = LoadSize(
        requests=options.requests,
        concurrency=options.concurrency,
        prompt_tokens=options.prompt_tokens,
        max_tokens=options.max_tokens,
    )
    rows = []
    with _targets(slots=options.slots, threads=options.threads) as targets:
        for tool, number in product(ALL_TOOLS, range(options.rounds)):
            for target in targets[:: -1 if number % 2 else 1]:
                sys.stderr.write(f"{tool.name} against {target.name}\n")
                fresh = replace(target, seed=target.seed + len(targets) * number)
                rows.append((tool.name, target.name, _run(tool, fresh, size)))
    Console(width=140).print(_table(rows, size, slots=options.slots))
    if options.json:
        found = [{"tool": tool, "target": target, **asdict(each)} for tool, target, each in rows]
        options.json.write_text(f"{json.dumps(found, indent=1)}\n")


@contextmanager
def _targets(*, slots: int, threads: int) -> Iterator[list[Target]]:
    """Start llama-server and Longbatch on it."""
    engine = LlamaOptions(gguf=bundled_gguf(), context=_CONTEXT, slots=slots, threads=threads)
    with (
        tempfile.TemporaryDirectory(prefix="longbatch-clients-") as folder,
        running_stack(Path(folder) / "longbatch", engine) as (stack, http),
    ):
        settings = stack.urls.engine_settings or {}
        (listed,) = http.get("/v1/models").raise_for_status().json()["data"]
        tokenizer = Path(settings["LONGBATCH_TOKENIZER__PATH"])
        yield [
            Target(
                name="llama-server",
                url=settings["LONGBATCH_ENGINE__URL"],
                api_key=None,
                model=listed["id"],
                tokenizer=tokenizer,
                seed=1,
            ),
            Target(
                name="Longbatch",
                url=stack.urls.api_url or "",
                api_key=stack.urls.api_key,
                model=listed["id"],
                tokenizer=tokenizer,
                seed=2,
            ),
        ]


def _run(tool: Tool, target: Target, size: LoadSize) -> Figures:
    """Run a tool in a folder of its own.

    Raises:
        SystemExit: it failed; the message has the end of what it printed.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    with tempfile.TemporaryDirectory(prefix="longbatch-clients-") as folder:
        done = subprocess.run(
            tool.command(target, size, Path(folder)),
            cwd=folder,
            env={**inherited, "NO_PROXY": "*", "HOME": folder, **tool.environment(target)},
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"{tool.name} against {target.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return tool.read(Path(folder), done.stdout)


def _table(rows: list[tuple[str, str, Figures]], size: LoadSize, *, slots: int) -> Table:
    title = (
        f"{size.requests} requests of {size.prompt_tokens} tokens, at most {size.max_tokens} out,"
        f" {size.concurrency} callers, {slots} slots, load average {os.getloadavg()[0]:.1f}"
    )
    table = Table(
        *("tool", "server", "TTFT p50 s", "TPOT p50 ms", "latency p50 s", "output tokens/s"),
        *("prompt tokens", "output tokens", "answered"),
        title=title,
        title_justify="left",
        box=None,
    )
    for tool, target, each in rows:
        table.add_row(
            tool,
            target,
            f"{each.ttft:.2f}",
            f"{1000 * each.tpot:.0f}",
            f"{each.latency:.2f}",
            f"{each.tokens_per_second:.1f}",
            "not counted" if each.prompt_tokens is None else f"{each.prompt_tokens:.0f}",
            f"{each.output_tokens:.1f}",
            str(each.answered),
        )
    return table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2, help="the servers in turns first")
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=4, help="callers")
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--slots", type=int, default=2, help="of llama-server")
    parser.add_argument("--threads", type=int, default=1, help="of llama-server")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
