"""`longbatch up`."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

import typer

EngineKind = Annotated[
    Literal["triton", "llama"],
    typer.Option(
        "--engine",
        help="llama: a real model with llama.cpp on the CPU, no Triton; needs `make setup ENGINE=llama`.",
    ),
]
EngineUrl = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-url",
        help="An engine that runs already: http://host:port of vLLM, SGLang, trtllm-serve, llama-server or"
        " any OpenAI-compatible server, grpc://host:port of Triton; again for each.",
    ),
]
GgufFile = Annotated[
    Path | None,
    typer.Option(
        "--gguf",
        help="With --engine llama: the model.",
        show_default="SmolLM2-135M-Instruct",
        dir_okay=False,
        exists=True,
    ),
]


def _address(given: str) -> str:
    try:
        return str(ip_address(given))
    except ValueError as error:
        raise typer.BadParameter("must be an IP address of this machine, or 0.0.0.0 for all.") from error


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(up)


def up(  # noqa: PLR0913  # one for each option
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
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            callback=_address,
            help="Address that the API listens on; any but loopback needs both TLS files.",
        ),
    ] = "127.0.0.1",
    tls_certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="LONGBATCH_API__TLS_CERTIFICATE",
            help="PEM of the API's certificate and of those that lead to its authority.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar="LONGBATCH_API__TLS_KEY", help="PEM of the certificate's key, unencrypted."
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
    engine: EngineKind = "triton",
    engine_url: EngineUrl = None,
    engine_model: Annotated[
        str | None,
        typer.Option(help="With --engine-url: the model's name there.", show_default="the engine's only one"),
    ] = None,
    engine_slots: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --engine-url: requests that it runs at once.", show_default="as it reports"
        ),
    ] = None,
    engine_kv_tokens: Annotated[
        int | None,
        typer.Option(min=64, help="With --engine-url: tokens of its KV cache.", show_default="as it reports"),
    ] = None,
    engine_tokenizer: Annotated[
        str | None,
        typer.Option(
            help="With --engine-url: directory of the model's tokenizer, or its Hugging Face name.",
            show_default="the model's own, if it is on this machine",
        ),
    ] = None,
    gguf: GgufFile = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=256, help="With --engine llama: tokens of one request.", show_default="the model's own"
        ),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=64, help="With --engine llama: requests at once.")] = 2,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="With --engine llama: its threads.", show_default="all cores but one"),
    ] = None,
    adapter: Annotated[
        list[Path] | None,
        typer.Option(
            help="With --engine llama: a LoRA adapter's GGUF file; again for each.",
            dir_okay=False,
            exists=True,
        ),
    ] = None,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="With --engine llama: also serve /v1/embeddings.")
    ] = False,
) -> None:
    """Run Longbatch here: database, broker, engine, API and workers, until Ctrl-C."""
    from cli.stack import (
        foreground,  # the stack takes most of a second to import; other commands do not need it
    )
    from cli.stack.api_address import TlsFiles
    from cli.stack.engine_urls import EngineUrls
    from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf

    of_url = {
        "--engine-model": engine_model,
        "--engine-slots": engine_slots,
        "--engine-kv-tokens": engine_kv_tokens,
        "--engine-tokenizer": engine_tokenizer,
    }
    if engine_url is None and (alone := next((name for name, each in of_url.items() if each), None)):
        raise typer.BadParameter("it needs --engine-url.", param_hint=alone)
    if engine_url is not None and (engine == "llama" or model is not None):
        raise typer.BadParameter("the engine is --engine llama, --model or --engine-url: give one of them.")
    if (tls_certificate is None) != (tls_key is None):
        raise typer.BadParameter("--tls-certificate and --tls-key go together.")
    tls = TlsFiles(tls_certificate.absolute(), tls_key.absolute()) if tls_certificate and tls_key else None
    check_gguf(gguf, engine=engine)
    if adapter and engine != "llama":
        raise typer.BadParameter("it needs --engine llama.", param_hint="--adapter")
    if embeddings and engine != "llama":
        raise typer.BadParameter("it needs --engine llama.", param_hint="--embeddings")
    chosen: foreground.LocalEngineArgs | foreground.ModelArgs | LlamaOptions | EngineUrls
    if engine_url is not None:
        chosen = EngineUrls(
            urls=tuple(engine_url),
            model=engine_model,
            slots=engine_slots,
            kv_tokens=engine_kv_tokens,
            tokenizer=engine_tokenizer,
        )
    elif engine == "llama":
        if model is not None:
            raise typer.BadParameter("--model is served by Triton; a GGUF file goes with --gguf.")
        chosen = LlamaOptions(
            gguf=gguf or bundled_gguf(),
            context=context,
            slots=slots,
            threads=threads,
            adapters=tuple(adapter or ()),
            embeddings=embeddings,
        )
    elif model is None:
        chosen = foreground.LocalEngineArgs(mode=engine_mode, time_scale=time_scale, text_models=text_models)
    else:
        chosen = foreground.ModelArgs(model_dir=model, kv_cache_tokens=kv_tokens)
    foreground.run(data_dir=data_dir, host=host, port=port, tls=tls, ready_file=ready_file, engine=chosen)


def check_gguf(gguf: Path | None, *, engine: str) -> None:
    """Check that a GGUF file comes with the engine that reads it.

    Raises:
        typer.BadParameter: it does not.
    """
    if gguf is not None and engine != "llama":
        raise typer.BadParameter("it needs --engine llama.", param_hint="--gguf")
