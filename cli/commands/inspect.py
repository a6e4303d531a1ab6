"""`longbatch engine inspect`: what an engine's server offers, and what is wrong with it."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Annotated, Final

import typer
from rich.markup import escape

from cli import local
from jobs.diagnostics import Finding
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSide
from longbatch.cli.output import AsJson, output, print_json

SYMBOLS: Final = {
    "ok": "[green]✓[/]",
    "warning": "[yellow]![/]",
    "failed": "[red]✗[/]",
    "unknown": "[yellow]?[/]",
}

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Triton's gRPC address, or http://host:port of another engine.",
        show_default="LONGBATCH_ENGINE__URL, LONGBATCH_TRITON__URL, the local stack",
    ),
]
MetricsUrl = Annotated[str | None, typer.Option("--metrics-url", help="http://host:8002/metrics")]
ModelName = Annotated[
    str | None, typer.Option("--model", help="Model to send requests to.", show_default="tensorrt_llm")
]


def register(app: typer.Typer) -> None:
    """Add the command to the engine application."""
    app.command("inspect", epilog="Exit codes: 0 no problem found, 1 a check failed.")(inspect)


def inspect(
    *,
    url: Url = None,
    metrics_url: MetricsUrl = None,
    model: ModelName = None,
    keepalive: Annotated[
        bool, typer.Option("--keepalive", help="Also test the server's keepalive flags; takes 32 s.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Report what an engine's server offers and what is wrong: batch size, KV cache, tokenizer, metrics."""
    findings = []
    side = local.find_engine(url, metrics_url=metrics_url, model=model)
    is_named = local.names_engine(url)
    for found in _examine(side, keepalive=keepalive):
        finding = found if is_named else of_unnamed(found)
        findings.append(finding)
        if not as_json:
            show(finding)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    if any(finding.status == "failed" for finding in findings):
        raise typer.Exit(1)


def of_unnamed(finding: Finding) -> Finding:
    """Advise to name an engine where the default address was tried in vain."""
    if finding.name != "server" or finding.status != "failed":
        return finding
    return replace(finding, advice="no engine is named: start `longbatch up`, or add --url http://host:port")


def _examine(side: EngineSide, *, keepalive: bool) -> Iterator[Finding]:
    # gRPC takes a moment to import; other commands do not need it.
    from worker.engine.kinds import is_triton, triton_of
    from worker.engine.probe import inspect as inspect_engine
    from worker.engine.triton.keepalive import try_keepalive

    is_tried = keepalive and is_triton(side.engine)  # the flags are Triton's
    for finding in inspect_engine(side, Tokenizer.load(side.tokenizer.path)):
        if not (is_tried and finding.name == "keepalive"):
            yield finding
    if is_tried:
        yield try_keepalive(triton_of(side.triton, side.engine).url)


def show(finding: Finding) -> None:
    """Print a finding on one line, with the advice after an arrow."""
    advice = f" [dim]→ {escape(finding.advice)}[/]" if finding.advice and finding.status != "ok" else ""
    output.print(f"{SYMBOLS[finding.status]} [bold]{finding.name}[/]: {escape(finding.detail)}{advice}")
