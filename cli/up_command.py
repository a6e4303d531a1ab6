"""`longbatch up`."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def register(app: typer.Typer) -> None:
    """The application has the verb."""
    app.command()(up)


def up(
    *,
    data_dir: Annotated[
        Path | None, typer.Option(help="Data, logs, ready.json.", show_default="~/.local/share/longbatch")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Of the API.", show_default="8080, a random one if taken"),
    ] = None,
    ready_file: Annotated[Path | None, typer.Option(help="JSON with URLs and process ids.")] = None,
    time_scale: Annotated[
        float, typer.Option(min=0.001, help="How much faster than an A6000 the local engine runs.")
    ] = 1,
    engine_mode: Annotated[
        Literal["extractive", "synthetic", "oracle"], typer.Option(help="What the local engine answers.")
    ] = "extractive",
    text_models: Annotated[
        bool,
        typer.Option(
            "--text-models",
            help="The local engine also serves preprocessing, postprocessing, ensemble and tensorrt_llm_bls.",
        ),
    ] = False,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="A Hugging Face model that Triton runs with transformers, in place of the stand-in. Needs"
            " the extra transformers-engine, and a GPU for anything but tiny models.",
        ),
    ] = None,
) -> None:
    """Run Longbatch here: database, broker, Triton, API and workers, until Ctrl-C."""
    from cli import up_run  # the stack takes most of a second to import; other verbs need none of it

    up_run.run(
        data_dir=data_dir,
        port=port,
        ready_file=ready_file,
        engine=up_run.EngineWish(
            mode=engine_mode, time_scale=time_scale, text_models=text_models, model=model
        ),
    )
