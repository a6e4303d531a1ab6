"""`python -m bench.gpu.target_g`: the product on a GPU against the engine alone with the same list.

The contenders run one list on one engine, a Llama-3.1-8B shape with random weights over transformers:

- a: transformers' own continuous batching, offline, in the list's order, with each answer's length known;
- b: a script that sends the list to Triton at once, in its order, with each answer's length known;
- c: Longbatch: jobs in Postgres, its worker, its order, `max_tokens` 2048 and the lengths unknown to it;
- d: like a, but document by document, for lists that ask about documents.

The card holds one engine at a time: a runs alone, b and c on a server that starts before the first of them.
Random weights end no answer, so for c the engine ends it after as many tokens as the job's seed says.
What b and c asked of the engine at once, and what it generated twice, comes from the engine's own trace.
The workload QUESTIONS asks 6 questions about each of 12 documents of 30,000 tokens, question by question.
`--tiny` does the same on a CPU with lengths divided by 64, to test the script.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.gpu import shapes
from bench.gpu.phases import JobRun, job_runs, phases, read_steps
from bench.peers import manifest
from bench.peers.drive import Direct
from bench.simulation.shared_documents import ask
from bench.simulation.workloads import MAX_PROMPT_TOKENS, Spec, make
from bench.stand import trace
from bench.stand.contenders import Longbatch, Span
from bench.stand.documents import Prompt
from bench.stand.stand import Stand
from cli.stack.servers.transformers_options import TransformersOptions

_ROOT = Path(__file__).resolve().parents[2]
_TINY = 64  # divisor of lengths
_LEAST_PROMPT = 64  # tokens; the chat template's markup needs about 50
_STEPS = "TRANSFORMERS_ENGINE_STEPS"  # triton/transformers/tensorrt_llm/1/steps.py


@dataclass(frozen=True, slots=True)
class Asked:
    """Parsed arguments."""

    jobs: int
    seed: int
    workload: str
    output_share: float
    order: str
    tiny: bool
    out: Path


class GpuStand(Stand):
    """Real servers over the transformers engine."""

    def fields(self, prompt: Prompt) -> dict[str, object]:
        """Return the seed, which sets the number of tokens after which the answer ends."""
        return {"seed": prompt.spec.output_tokens}


def main() -> None:
    """Run the contenders in the requested order; print and store each run as it ends."""
    asked = _asked()
    specs = _specs(asked)
    with tempfile.TemporaryDirectory(prefix="longbatch-gpu-") as name:
        directory = Path(name)
        directory.chmod(0o711)  # Postgres is another user
        os.environ[_STEPS] = str(directory / "steps.jsonl")  # of the engine, wherever it runs
        options = _options(directory, tiny=asked.tiny)
        stand = GpuStand(directory / "stand", environment=_settings(), engine=options)
        prompts = stand.author.write(specs, seed=asked.seed)
        for is_offline, letters in groupby(asked.order, "ad".__contains__):
            if not is_offline:
                _serve(asked, letters, stand, options, prompts)
                continue
            for letter in letters:
                by_document = sorted(prompts, key=lambda each: each.spec.document or 0)
                listed = by_document if letter == "d" else prompts
                _note(asked, letter, listed, _offline(directory, options, _known(listed)))


def _asked() -> Asked:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workload", default="MIX-20")
    parser.add_argument("--output-share", type=float, default=0.4, help="of the workload's output tokens")
    parser.add_argument("--order", default="abc")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("bench/results/gpu.jsonl"))
    return Asked(**vars(parser.parse_args()))


def _specs(asked: Asked) -> list[Spec]:
    """Make the workload with shorter answers, to save time, and one longest prompt; QUESTIONS as it is."""
    scale = _TINY if asked.tiny else 1
    if asked.workload == "QUESTIONS":
        tokens = 30_000 // scale + (_LEAST_PROMPT if asked.tiny else 0)
        listed = ask(seed=asked.seed, document_tokens=tokens, num_documents=12, num_questions=6)
        return [replace(each, output_tokens=32, max_tokens=256 if asked.tiny else 2048) for each in listed]
    specs = make(asked.workload, seed=asked.seed, num_jobs=asked.jobs, max_tokens=2048)
    longest = max(range(len(specs)), key=lambda place: specs[place].prompt_tokens)
    specs[longest] = replace(specs[longest], prompt_tokens=MAX_PROMPT_TOKENS)
    return [
        replace(
            each,
            prompt_tokens=max(_LEAST_PROMPT, each.prompt_tokens // scale),
            output_tokens=max(2, round(each.output_tokens * asked.output_share / (8 if asked.tiny else 1))),
            max_tokens=each.max_tokens // (8 if asked.tiny else 1),
        )
        for each in specs
    ]


def _options(directory: Path, *, tiny: bool) -> TransformersOptions:
    model_dir = shapes.write(directory / "model", shapes.TINY if tiny else shapes.LLAMA_8B)
    common: dict[str, Any] = {"model_dir": model_dir, "random_weights": True, "sampling": False}
    common |= {"seed_is_length": True, "tokens_per_response": 8}
    if not tiny:
        return TransformersOptions(**common, max_num_tokens=8192)
    pool = 131_072 // _TINY
    return TransformersOptions(
        **common,
        device="cpu",
        kv_cache_tokens=pool,
        tokens_per_block=16,
        max_input_len=96_000 // _TINY,
        max_seq_len=pool,
        max_num_tokens=128,
    )


def _settings() -> dict[str, str]:
    """Pass on a configured tokenizer; the product keeps its defaults otherwise."""
    name = "LONGBATCH_TOKENIZER__PATH"
    return {name: os.environ[name]} if name in os.environ else {}


def _warm_up(stand: Stand, known: list[Prompt]) -> None:
    """Load kernels and raise clocks; the prompts go backwards, so that nothing of them is in the cache."""
    sizes = sorted(known, key=lambda each: each.spec.prompt_tokens)
    shortest_and_longest = [
        replace(each, ids=each.ids[::-1].copy(), spec=replace(each.spec, max_tokens=8))
        for each in (sizes[0], sizes[-1])
    ]
    Direct().run(stand, shortest_and_longest)


def _serve(
    asked: Asked, letters: Iterable[str], stand: GpuStand, options: TransformersOptions, prompts: list[Prompt]
) -> None:
    """Run these contenders on one server."""
    began = time.monotonic()
    with stand:
        _print(f"servers up after {time.monotonic() - began:.0f} s")
        known = _known(prompts)
        _warm_up(stand, known)
        for letter in letters:
            span = Longbatch().run(stand, prompts) if letter == "c" else Direct().run(stand, known)
            seen = trace.read(stand.trace, since=span.began, until=time.monotonic())
            _note(asked, letter, prompts, span, _of_engine(letter, seen, options, span))
            if letter == "c":
                _keep(asked, job_runs(stand, prompts, seen.requests, span))


def _known(prompts: list[Prompt]) -> list[Prompt]:
    """Tell each prompt's length of answer to its contender, as `max_tokens`."""
    return [replace(each, spec=replace(each.spec, max_tokens=each.spec.output_tokens)) for each in prompts]


def _offline(directory: Path, options: TransformersOptions, prompts: list[Prompt]) -> Span:
    """Run transformers alone in its own process, while the server is idle."""
    sized = [(each.ids, each.spec.max_tokens, 0.0) for each in prompts]
    listed = manifest.write(directory / "offline", sized)
    values = json.dumps(asdict(options), default=str)
    command = [sys.executable, "-m", "bench.gpu.offline", values, str(listed)]
    with (directory / "offline.log").open("wb") as log:
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=log, text=True, cwd=_ROOT)
    if done.returncode:
        raise RuntimeError((directory / "offline.log").read_text()[-3000:])
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Span(report["began"], report["ended"], report["tokens"])


def _note(
    asked: Asked, letter: str, prompts: list[Prompt], span: Span, of_engine: dict[str, float] | None = None
) -> None:
    """Print and store the run's figures."""
    specs = [each.spec for each in prompts]
    wanted = [each.output_tokens - _ends(letter) for each in specs]
    record = {
        "run": letter,
        "seed": asked.seed,
        "workload": asked.workload,
        "jobs": len(specs),
        "prompt_tokens": sum(each.prompt_tokens for each in specs),
        "longest_prompt": max(each.prompt_tokens for each in specs),
        "output_tokens": sum(span.tokens),
        "seconds": round(span.seconds, 2),
        "lost": span.tokens.count(0),
        "cut": sum(0 < found < right for found, right in zip(span.tokens, wanted, strict=True)),
        **(of_engine or {}),
        **phases(read_steps(Path(os.environ[_STEPS]), span), span),
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with asked.out.open("a") as file:
        file.write(json.dumps(record) + "\n")
    _print(json.dumps(record))


def _keep(asked: Asked, runs: list[JobRun]) -> None:
    """Store what became of each job when, beside the figures."""
    with asked.out.with_suffix(".jobs.jsonl").open("a") as file:
        file.write(json.dumps([asdict(each) for each in runs]) + "\n")


def _of_engine(letter: str, seen: trace.Seen, options: TransformersOptions, span: Span) -> dict[str, float]:
    """Count requests, tokens generated twice, and the most slots and blocks asked for at once."""
    slots, blocks = trace.most_asked(seen.requests, options.capacity)
    generated = sum(each.generated for each in seen.requests)
    return {
        "requests": len(seen.requests),
        "open_requests": seen.num_open,
        "tokens_twice": generated - sum(span.tokens) - _ends(letter) * len(span.tokens),
        "most_slots": slots,
        "most_blocks": blocks,
        "max_blocks": options.capacity.max_blocks,
    }


def _ends(letter: str) -> int:
    """Return how many end tokens a run leaves out of an answer's count: Longbatch one, the others none."""
    return int(letter == "c")


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201  a command prints


if __name__ == "__main__":
    main()
