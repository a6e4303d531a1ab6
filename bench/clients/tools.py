"""Each load generator: its command for a target, and the figures in what it writes or prints."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TOOLS: Final = Path(".venv-bench-clients/bin").absolute()
_NOWHERE: Final = "http://127.0.0.1:9"  # in place of the model hub


@dataclass(frozen=True, kw_only=True)
class LoadSize:
    """The load of one run.

    Attributes:
        requests: in all.
        concurrency: callers, each with one request at a time.
        prompt_tokens: of each prompt, without what a chat template adds.
        max_tokens: most tokens of each answer.
    """

    requests: int
    concurrency: int
    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server under load.

    Attributes:
        name: in the report.
        url: of its OpenAI API, without `/v1`.
        api_key: that it asks for; None: none.
        model: the name in requests.
        tokenizer: the model's, a directory.
        seed: of the prompts, another for each target, so that no run finds another's in the engine's cache.
    """

    name: str
    url: str
    api_key: str | None
    model: str
    tokenizer: Path
    seed: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a tool measured: medians over requests in seconds, and totals over the run.

    Attributes:
        ttft: time to first token.
        tpot: time per output token after the first.
        latency: of a whole request.
        tokens_per_second: output of all requests, by the tool's own clock.
        prompt_tokens: counted by the tool for a prompt; None: it does not count them.
        output_tokens: counted by the tool for an answer.
        answered: requests with a whole answer.
    """

    ttft: float
    tpot: float
    latency: float
    tokens_per_second: float
    prompt_tokens: float | None
    output_tokens: float
    answered: int


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A load generator.

    Attributes:
        command: for a target, a load and an empty folder.
        environment: variables on top of this process's, of the target.
        read: the figures, from the folder and what the command printed.
    """

    name: str
    command: Callable[[Target, LoadSize, Path], Sequence[str]]
    environment: Callable[[Target], Mapping[str, str]]
    read: Callable[[Path, str], Figures]


def _aiperf(target: Target, size: LoadSize, folder: Path) -> list[str]:
    key = ["--api-key", target.api_key] if target.api_key else []
    return [
        str(TOOLS / "aiperf"),
        *("profile", "--ui", "none", "--no-server-metrics", "--no-gpu-telemetry"),
        *("--url", target.url, "--endpoint-type", "chat", "--streaming", *key),
        *("--model", target.model, "--tokenizer", str(target.tokenizer)),
        *("--concurrency", str(size.concurrency), "--request-count", str(size.requests)),
        *("--synthetic-input-tokens-mean", str(size.prompt_tokens), "--synthetic-input-tokens-stddev", "0"),
        *("--output-tokens-mean", str(size.max_tokens), "--output-tokens-stddev", "0"),
        *("--random-seed", str(target.seed), "--artifact-dir", str(folder)),
    ]


def read_aiperf(folder: Path, _: str) -> Figures:
    """Read AIPerf's export."""
    found: dict[str, Any] = json.loads((folder / "profile_export_aiperf.json").read_text())
    return Figures(
        ttft=found["time_to_first_token"]["p50"] / 1000,
        tpot=found["inter_token_latency"]["p50"] / 1000,
        latency=found["request_latency"]["p50"] / 1000,
        tokens_per_second=found["output_token_throughput"]["avg"],
        prompt_tokens=found["input_sequence_length"]["avg"],
        output_tokens=found["output_sequence_length"]["avg"],
        answered=round(found["request_count"]["avg"]),
    )


def _genai_bench(target: Target, size: LoadSize, folder: Path) -> list[str]:
    return [
        str(TOOLS / "genai-bench"),
        *("benchmark", "--api-backend", "openai", "--task", "text-to-text"),
        *("--api-base", target.url, "--api-key", target.api_key or "none"),
        *("--api-model-name", target.model, "--model-tokenizer", str(target.tokenizer)),
        *("--traffic-scenario", f"D({size.prompt_tokens},{size.max_tokens})"),
        *("--num-concurrency", str(size.concurrency), "--max-requests-per-run", str(size.requests)),
        *(
            "--max-time-per-run",
            "10",
            "--experiment-base-dir",
            str(folder),
            "--experiment-folder-name",
            "run",
        ),
    ]


def read_genai_bench(folder: Path, _: str) -> Figures:
    """Read the file of genai-bench's only run."""
    (file,) = (folder / "run").glob("D*.json")
    found: dict[str, Any] = json.loads(file.read_text())["aggregated_metrics"]
    stats = found["stats"]
    return Figures(
        ttft=stats["ttft"]["p50"],
        tpot=stats["tpot"]["p50"],
        latency=stats["e2e_latency"]["p50"],
        tokens_per_second=found["mean_output_throughput_tokens_per_s"],
        prompt_tokens=stats["num_input_tokens"]["mean"],
        output_tokens=stats["num_output_tokens"]["mean"],
        answered=found["num_completed_requests"],
    )


def _longbatch(target: Target, size: LoadSize, _: Path) -> list[str]:
    where = ["--through", "api", "--api-url", target.url] if target.api_key else ["--url", target.url]
    return [
        str(Path(".venv/bin/longbatch").absolute()),
        *("bench", "engine", *where, "--json", "--seed", str(target.seed)),
        *("--requests", str(size.requests), "--concurrency", str(size.concurrency)),
        *("--prompt-tokens", str(size.prompt_tokens), "--max-tokens", str(size.max_tokens)),
    ]


def read_longbatch(_: Path, printed: str) -> Figures:
    """Read the report that `longbatch bench engine --json` prints."""
    found: dict[str, Any] = json.loads(printed)
    answered = found["num_requests"] - found["num_failed"]
    return Figures(
        ttft=found["ttft"]["p50"],
        tpot=found["tpot"]["p50"],
        latency=found["latency"]["p50"],
        tokens_per_second=found["output_tokens_per_second"],
        prompt_tokens=None,
        output_tokens=found["output_tokens"] / max(1, answered),
        answered=answered,
    )


ALL_TOOLS: Final = (
    Tool(
        name="longbatch bench",
        command=_longbatch,
        environment=lambda target: {
            "LONGBATCH_TOKENIZER__PATH": str(target.tokenizer),
            "LONGBATCH_API_KEY": target.api_key or "",
        },
        read=read_longbatch,
    ),
    # With HF_HUB_OFFLINE it takes a directory for the name of a repository.
    Tool(name="AIPerf", command=_aiperf, environment=lambda _: {"HF_ENDPOINT": _NOWHERE}, read=read_aiperf),
    Tool(
        name="genai-bench",
        command=_genai_bench,
        environment=lambda _: {"HF_HUB_OFFLINE": "1"},
        read=read_genai_bench,
    ),
)
