"""The local engine alone, for containers: `python -m cli.stack.serve_engine` becomes tritonserver."""

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
    address: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK,
    grpc_port: Annotated[int, typer.Option(min=1, max=65535)] = 8001,
    http_port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    metrics_port: Annotated[int, typer.Option(min=1, max=65535)] = 8002,
    time_scale: Annotated[float, typer.Option(min=0.001, help="Speed relative to an A6000.")] = 1,
    text_models: Annotated[
        bool,
        typer.Option(
            "--text-models", help="Also serve preprocessing, postprocessing, ensemble, tensorrt_llm_bls."
        ),
    ] = False,
) -> None:
    """Replace this process with Triton and the local engine."""
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
    os.execve(launch.argv[0], launch.argv, launch.env)  # noqa: S606  # no shell needed


if __name__ == "__main__":
    typer.run(serve)
