"""`longbatch demo`."""

from pathlib import Path
from typing import Annotated

import typer

# Makes a prompt of 90,000 tokens, 46 s of an A6000, a matter of seconds.
DEFAULT_TIME_SCALE = 8.0


def register(app: typer.Typer) -> None:
    """The application has the verb."""
    app.command()(demo)


def demo(
    docs: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Your documents.", show_default="Python's reference"),
    ] = None,
    time_scale: Annotated[
        float, typer.Option(min=0.1, help="How much faster than an A6000 the local engine runs.")
    ] = DEFAULT_TIME_SCALE,
) -> None:
    """Summarize documents on a stack of its own, from nothing to a table; exit 1 unless all complete."""
    from cli.demo import run  # the stack takes most of a second to import; other verbs need none of it

    try:
        all_completed = run.run(docs, time_scale=time_scale)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--docs") from error
    if not all_completed:
        raise typer.Exit(1)
