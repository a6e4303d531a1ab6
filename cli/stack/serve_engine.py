"""The local engine alone: `python -m cli.stack.serve_engine` becomes tritonserver, for containers."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.triton_server import LOOPBACK, prepare
from jobs.prompts.tokenizer_files import tokenizer_directory


def serve(
    *,
    address: Annotated[str, typer.Option(help="Where to listen.")] = LOOPBACK,
    grpc_port: Annotated[int, typer.Option(min=1, max=65535)] = 8001,
    http_port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    metrics_port: Annotated[int, typer.Option(min=1, max=65535)] = 8002,
    time_scale: Annotated[float, typer.Option(min=0.001, help="How much faster than an A6000.")] = 1,
    text_models: Annotated[
        bool,
        typer.Option("--text-models", help="Also preprocessing, postprocessing, ensemble, tensorrt_llm_bls."),
    ] = False,
) -> None:
    """Run Triton with the local engine in place of this process."""
    launch = prepare(
        Path(tempfile.mkdtemp(prefix="longbatch-engine-")),
        engine=EngineOptions(
            tokenizer_dir=tokenizer_directory(None), time_scale=time_scale, text_models=text_models
        ),
        grpc_port=grpc_port,
        http_port=http_port,
        metrics_port=metrics_port,
        address=address,
    )
    os.chdir(launch.cwd)
    os.execve(launch.argv[0], launch.argv, launch.env)  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    typer.run(serve)
