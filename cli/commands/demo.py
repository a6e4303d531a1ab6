"""`longbatch demo`."""

from pathlib import Path
from typing import Annotated

import typer

from cli.commands.up import EngineKind, GgufFile, check_gguf

# A prompt of 90,000 tokens, 46 s on an A6000, then takes seconds.
DEFAULT_TIME_SCALE = 8.0


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(demo)


def demo(
    docs: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Folder with your documents.",
            show_default="Python's reference",
        ),
    ] = None,
    engine: EngineKind = "triton",
    gguf: GgufFile = None,
    time_scale: Annotated[
        float, typer.Option(min=0.1, help="How much faster than an A6000 the local engine runs.")
    ] = DEFAULT_TIME_SCALE,
) -> None:
    """Start a stack of its own, summarize documents on it and print a table; exit 1 unless all complete."""
    from cli.demo import run  # the stack takes most of a second to import; other commands do not need it

    check_gguf(gguf, engine=engine)
    try:
        if engine == "llama":
            all_completed = run.run_llama(docs, gguf=gguf)
        else:
            all_completed = run.run_stand_in(docs, time_scale=time_scale)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--docs") from error
    if not all_completed:
        raise typer.Exit(1)
