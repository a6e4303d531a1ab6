"""`longbatch up`."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(up)


def up(
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for data, logs and ready.json.", show_default="~/.local/share/longbatch"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the API; 0 for a random one.",
            show_default="8080, a random one if taken",
        ),
    ] = None,
    ready_file: Annotated[Path | None, typer.Option(help="Write URLs and process ids here as JSON.")] = None,
    time_scale: Annotated[
        float, typer.Option(min=0.001, help="How much faster than an A6000 the local engine runs.")
    ] = 1,
    engine_mode: Annotated[
        Literal["extractive", "synthetic", "oracle"],
        typer.Option(help="How the local engine makes its answers."),
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
            help="Directory of a Hugging Face model to serve with transformers instead of the local engine.",
            file_okay=False,
            exists=True,
        ),
    ] = None,
    kv_tokens: Annotated[int, typer.Option(min=1024, help="With --model: tokens in the KV cache.")] = 131_072,
) -> None:
    """Run Longbatch here: database, broker, Triton, API and workers, until Ctrl-C."""
    from cli.stack import (
        foreground,  # the stack takes most of a second to import; other commands do not need it
    )

    engine: foreground.LocalEngineArgs | foreground.ModelArgs
    if model is None:
        engine = foreground.LocalEngineArgs(mode=engine_mode, time_scale=time_scale, text_models=text_models)
    else:
        engine = foreground.ModelArgs(model_dir=model, kv_cache_tokens=kv_tokens)
    foreground.run(data_dir=data_dir, port=port, ready_file=ready_file, engine=engine)
