"""`longbatch bench engine`: load from independent callers, and the latency each one sees."""

from dataclasses import asdict
from typing import Annotated, Final, Literal

import typer

from cli import local
from cli.commands.inspect import MetricsUrl, ModelName, Url
from longbatch.cli.output import ApiUrl, AsJson, notes, output, print_json
from longbatch.server import find_server

MAX_REQUESTS: Final = 10_000

app = typer.Typer(no_args_is_help=True, help="Measure a running server under load.")


@app.callback()
def _root() -> None:
    """Measure a running server under load."""


def register(parent: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("engine", epilog="Exit codes: 0 every request was answered, 1 some were not.")(engine)
    parent.add_typer(app, name="bench")


def engine(  # noqa: PLR0913  # one for each option
    *,
    through: Annotated[
        Literal["triton", "api"],
        typer.Option(help="Send to the server directly, or through Longbatch's API."),
    ] = "triton",
    url: Url = None,
    metrics_url: MetricsUrl = None,
    model: ModelName = None,
    api_url: ApiUrl = None,
    num_requests: Annotated[int, typer.Option("--requests", min=1, max=MAX_REQUESTS)] = 32,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Requests per second at random times (Poisson), instead of --concurrency."
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Callers; each sends its next request after a reply.")
    ] = 4,
    prompt_tokens: Annotated[
        int, typer.Option(min=16, max=1_000_000, help="Approximate length of each prompt.")
    ] = 512,
    max_tokens: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum output tokens.")] = 128,
    limit_seconds: Annotated[
        float, typer.Option("--limit", min=1, max=86_400, help="Seconds after which no new request is sent.")
    ] = 600,
    seed: Annotated[int, typer.Option(help="Seed of arrival times and prompts.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Send independent requests, stream the replies, and report TTFT, TPOT, latency, output tokens/s."""
    from cli.load import run  # gRPC and httpx2 take a moment to import; other commands need neither

    plan = run.LoadPlan(
        num_requests=num_requests,
        rate=rate,
        concurrency=concurrency,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        limit_seconds=limit_seconds,
        seed=seed,
    )
    side = local.find_engine(url, metrics_url=metrics_url, model=model)
    with run.target(through, side, find_server(api_url), max_tokens=max_tokens) as target:
        report = run.measure(plan, target, tokenizer_path=side.tokenizer.path)
    if as_json:
        print_json(asdict(report))
    else:
        output.print(run.table(report))
    if report.num_failed:
        notes.print(f"[red]{report.num_failed} failed[/]: {'; '.join(report.errors)}")
        raise typer.Exit(1)
