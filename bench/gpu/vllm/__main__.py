"""`python -m bench.gpu.vllm`: Longbatch in front of a real vLLM, beside vLLM alone and plain clients.

- measure: run contenders on one list, in the given order, and append each run to a results file.
- export: write a list for vLLM's offline mode (`offline.py`, in vLLM's own Python).
- offline: append what `offline.py` measured to a results file.
- kill: kill the worker or vLLM, or cancel a job, while vLLM is full.
- charts: draw the two charts of docs/benchmarks.md from a results file.

A list is KIND:SEED[:JOBS], where KIND is MIX, QUESTIONS, SMALL-GPU, DECODE or REPORTS (`lists.py`).
Contenders are client, pool, by-document and longbatch.
`measure --dry-run` prints the list's sizes and the order, and sends nothing.
A GPU machine without package registries gets everything from `pack.sh`, run where there are registries;
`unpack.sh`, `serve.sh` and `up.sh` run there.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from bench.gpu.vllm import charts, kills, measure
from bench.gpu.vllm.gauges import Counters, Meter
from bench.gpu.vllm.lists import Listing
from bench.gpu.vllm.product import Product
from bench.gpu.vllm.record import Run, Setting, read_runs
from bench.stand.documents import Author, Prompt
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import tokenizer_directory

_RESULTS = Path("bench/results/vllm.jsonl")


def main() -> None:
    """Run one command."""
    asked = _parser().parse_args()
    asked.command(asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu.vllm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    _measure_arguments(commands.add_parser("measure"))
    export = commands.add_parser("export")
    export.add_argument("--list", type=Listing.parse, required=True)
    export.add_argument("--out", type=Path, required=True)
    export.set_defaults(command=_export)
    offline = commands.add_parser("offline")
    offline.add_argument("file", type=Path, help="written by offline.py")
    _setting_arguments(offline)
    offline.add_argument("--pool-tokens", type=int, required=True, help="tokens that its KV cache holds")
    offline.set_defaults(command=_offline)
    _kill_arguments(commands.add_parser("kill"))
    draw = commands.add_parser("charts")
    draw.add_argument("--results", type=Path, default=_RESULTS)
    draw.add_argument("--folder", type=Path, default=Path("docs"))
    draw.set_defaults(command=_charts)
    return parser


def _setting_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--slots", type=int, default=1024, help="--max-num-seqs of the server")
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, default=_RESULTS)


def _server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", default="http://127.0.0.1:8000")
    parser.add_argument("--ready", type=Path, default=Path("/opt/lb/state/ready.json"))
    parser.add_argument("--list", type=Listing.parse, required=True)


def _measure_arguments(parser: argparse.ArgumentParser) -> None:
    _server_arguments(parser)
    _setting_arguments(parser)
    parser.add_argument("--order", nargs="+", choices=measure.CONTENDERS, required=True)
    parser.add_argument("--patience", type=float, default=570, help="seconds for one contender")
    parser.add_argument("--warm", action="store_true", help="load kernels before the first contender")
    parser.add_argument("--dry-run", action="store_true", help="print sizes and order only")
    parser.set_defaults(command=_measure)


def _kill_arguments(parser: argparse.ArgumentParser) -> None:
    _server_arguments(parser)
    parser.add_argument("--case", choices=get_args(kills.Case), required=True)
    parser.add_argument("--after", type=float, default=10, help="seconds of undisturbed work")
    parser.add_argument("--engine-pid", type=Path, default=Path("/opt/lb/vllm.pid"))
    parser.add_argument("--restart", default="", help="command that starts vLLM again")
    parser.add_argument("--out", type=Path, default=_RESULTS.with_name("vllm-kills.jsonl"))
    parser.set_defaults(command=_kill)


def _measure(asked: argparse.Namespace) -> None:
    prompts = _prompts(asked.list)
    specs = [each.spec for each in prompts]
    _print(
        f"{asked.list}: {len(specs)} jobs, {sum(each.prompt_tokens for each in specs):,} tokens in,"
        f" {sum(each.output_tokens for each in specs):,} out; order: {', '.join(asked.order)}"
    )
    if asked.dry_run:
        return
    measurement = measure.Measurement(
        asked.engine,
        asked.list,
        prompts=prompts,
        setting=_setting(asked, Meter(asked.engine).pool_tokens()),
        ready=asked.ready,
        patience=asked.patience,
    )
    if asked.warm:
        measurement.warm_up()
    for contender in asked.order:
        run = measurement.run(contender)
        run.append(asked.out)
        _print_run(run)


def _export(asked: argparse.Namespace) -> None:
    prompts = [
        {
            "ids": each.ids.tolist(),
            "max_tokens": each.spec.max_tokens,
            "output_tokens": each.spec.output_tokens,
        }
        for each in _prompts(asked.list)
    ]
    asked.out.write_text(json.dumps({"listing": str(asked.list), "prompts": prompts}))


def _offline(asked: argparse.Namespace) -> None:
    for line in asked.file.read_text().splitlines():
        found = json.loads(line)
        listing = Listing.parse(found["listing"])
        specs = listing.specs()
        counters = found["counters"]
        run = Run(
            contender=measure.OFFLINE,
            listing=str(listing),
            setting=_setting(asked, asked.pool_tokens),
            jobs=len(specs),
            prompt_tokens=sum(each.prompt_tokens for each in specs),
            output_tokens=sum(each.output_tokens for each in specs),
            seconds=round(found["seconds"], 2),
            counters=Counters(
                preempted=counters.get("vllm:num_preemptions", 0),
                queried=counters.get("vllm:prefix_cache_queries", 0),
                hit=counters.get("vllm:prefix_cache_hits", 0),
                prompt=counters.get("vllm:prompt_tokens", 0),
                generated=counters.get("vllm:generation_tokens", 0),
            ),
            load=None,
            checks={"wrong_length": found["wrong_length"]},
        )
        run.append(asked.out)
        _print_run(run)


def _kill(asked: argparse.Namespace) -> None:
    found = kills.drill(
        asked.case,
        _prompts(asked.list),
        product=Product(asked.ready),
        meter=Meter(asked.engine),
        after_s=asked.after,
        engine_pid=asked.engine_pid,
        restart=asked.restart,
    )
    kills.append({"list": str(asked.list), **found}, asked.out)
    _print(json.dumps(found["verdict"]))


def _charts(asked: argparse.Namespace) -> None:
    runs = read_runs(asked.results)
    (asked.folder / "vllm-throughput.svg").write_text(charts.throughput(runs))
    (asked.folder / "vllm-running.svg").write_text(charts.running(runs))


def _prompts(listing: Listing) -> Sequence[Prompt]:
    author = Author(Tokenizer.load(str(tokenizer_directory(os.environ.get("LONGBATCH_TOKENIZER__PATH")))))
    return author.write(listing.specs(), seed=listing.seed)


def _setting(asked: argparse.Namespace, pool_tokens: int) -> Setting:
    return Setting(asked.shape, asked.slots, pool_tokens, asked.note)


def _print_run(run: Run) -> None:
    figures = asdict(run)
    del figures["curve"]
    _print(json.dumps(figures))


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # a command prints


if __name__ == "__main__":
    main()
