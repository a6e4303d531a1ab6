"""The local stack in the foreground, until Ctrl-C or SIGTERM."""

import importlib.util
import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from sqlalchemy import make_url

from cli.stack.api_address import TlsFiles
from cli.stack.database import KEY_FILE
from cli.stack.engine_urls import EngineUrls
from cli.stack.errors import StackError
from cli.stack.options import StackOptions, default_directory
from cli.stack.private_files import SIGNING_FILE
from cli.stack.ready import API, ENGINE_COMPONENT, Urls
from cli.stack.servers.engine_options import EngineMode, EngineOptions
from cli.stack.servers.llama_options import DEFAULT_GGUF, TOY, LlamaModel, LlamaOptions
from cli.stack.servers.transformers_options import TransformersOptions
from cli.stack.stack import Stack
from cli.stack.supervised import ServerEnded, ServerStarted
from jobs import open_files
from jobs.prompts.tokenizer_files import tokenizer_directory

_WATCH_SECONDS = 5.0
_JOURNAL = "JOURNAL_STREAM"  # systemd sets it for a service whose output goes into the journal
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TOKENIZER = "LONGBATCH_TOKENIZER__PATH"
_ENGINE = "LONGBATCH_ENGINE__URL"
_STAND_IN = (
    "[yellow]The engine is a local stand-in on the CPU:[/] it behaves like TensorRT-LLM (batching, KV cache, "
    "timing), but its answers are extracts of the prompt, not a language model's. To use a real one, start "
    "again with --engine-url: http://host:port of vLLM, SGLang, trtllm-serve or llama-server, or "
    "grpc://host:port of Triton with TensorRT-LLM."
)


class _StopRequestedError(BaseException):
    """A signal to stop; a BaseException, so that no error handler catches it."""


@dataclass(frozen=True, kw_only=True)
class LocalEngineArgs:
    """The command line's options for the local engine; see EngineOptions."""

    mode: EngineMode
    time_scale: float
    text_models: bool


@dataclass(frozen=True, kw_only=True)
class ModelArgs:
    """The command line's options for a model served by transformers; see TransformersOptions."""

    model_dir: Path
    kv_cache_tokens: int


def run(
    *,
    data_dir: Path | None,
    host: str,
    port: int | None,
    tls: TlsFiles | None,
    ready_file: Path | None,
    engine: LocalEngineArgs | ModelArgs | LlamaOptions | EngineUrls,
) -> None:
    """Run the stack until a signal asks it to stop."""
    open_files.raise_limit()  # every server inherits it
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    options = StackOptions(
        directory=data_dir or default_directory(),
        api_host=host,
        api_port=port,
        tls=tls,
        ready_file=ready_file,
    )
    configured = options.environment.get(_ENGINE)
    if configured and isinstance(engine, LocalEngineArgs):
        engine = EngineUrls(urls=(configured,))
    if isinstance(engine, EngineUrls):
        options = _with_urls(options, engine, console)
    else:
        options = _with_engine(options, engine)
    status = console.status("Starting…")
    stack = Stack(
        options,
        report=lambda event: _print_event(console, event),
        progress=lambda words: _print_step(console, status, words),
    )
    for number in _STOP_SIGNALS:
        signal.signal(number, _request_stop)
    try:
        with status:
            stack.start()
        _show(console, stack)
        _watch(console, stack)
    except _StopRequestedError:
        console.print("Stopping…")
    finally:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        stack.stop()


def _print_step(console: Console, status: Status, words: str) -> None:
    """Show a step of the start: next to the spinner of a terminal, otherwise on a line of its own."""
    if console.is_terminal:
        status.update(words)
    else:
        console.print(words)


def _watch(console: Console, stack: Stack) -> NoReturn:
    """Print when the engine stops getting jobs and when it gets some again, until a signal ends this."""
    shown: str | None = None
    while True:
        found = stack.not_ready()
        why = found.get(ENGINE_COMPONENT)
        if why != shown and API not in found:  # without the API, nothing is known of the engine
            with suppress(OSError):  # a closed terminal, or a full disk, must not end the stack
                _print_engine(console, why)
            shown = why
        time.sleep(_WATCH_SECONDS)


def _print_engine(console: Console, why: str | None) -> None:
    if why is None:
        console.print("[green]The engine gets jobs.[/]")
    else:
        console.print(f"[yellow]No job starts[/]; submitted ones wait: {escape(why)}")


def _with_engine(options: StackOptions, engine: LocalEngineArgs | ModelArgs | LlamaOptions) -> StackOptions:
    """Add this engine to the options; a model's own tokenizer counts its prompts."""
    if isinstance(engine, LlamaOptions):
        return replace(options, engine=engine)
    configured = options.environment.get(_TOKENIZER)
    if isinstance(engine, LocalEngineArgs):
        local = EngineOptions(tokenizer_dir=tokenizer_directory(configured), **asdict(engine))
        return replace(options, engine=local)
    if importlib.util.find_spec("torch") is None:
        raise StackError("--model needs torch: install Longbatch with its extra transformers-engine.")
    served = TransformersOptions(
        **asdict(engine),
        max_seq_len=engine.kv_cache_tokens,
        max_input_len=min(96_000, engine.kv_cache_tokens - 1),
    )
    environment = {**options.environment, _TOKENIZER: configured or str(engine.model_dir.resolve())}
    return replace(options, engine=served, environment=environment)


def _with_urls(options: StackOptions, engine: EngineUrls, console: Console) -> StackOptions:
    """Find the engines at these URLs, print what they are, and add them to the options."""
    from cli.stack.found_engines import find_engines  # clients of engines take most of a second to import

    found = find_engines(engine, options.environment)
    for each in found:
        console.print(f"[bold]Engine[/] {escape(each.words())}")
    first = found[0]
    return replace(
        options,
        engines=tuple(each.settings for each in found),
        environment={**first.defaults, **options.environment, **first.settings},
    )


def _request_stop(_number: int, _frame: FrameType | None) -> NoReturn:
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # stopping takes seconds and must not be cut short
    raise _StopRequestedError


def _show(console: Console, stack: Stack) -> None:
    urls = stack.urls
    rows = _rows(urls, stack)
    width = max(len(name) for name, _ in rows)
    console.print("[green]Longbatch is ready.[/]")
    for name, value in rows:  # no table: it would cut paths and addresses to the width of the terminal
        console.print(f"[bold]{name:<{width}}[/]  {escape(value)}")
    # A service's journal is read by more people, and kept for longer, than a terminal.
    is_logged = _JOURNAL in os.environ and not console.is_terminal
    if urls.api_key:
        shown = f"in {stack.directory / KEY_FILE}" if is_logged else urls.api_key
        console.print(f"[bold]API key[/]: {escape(shown)}")
    if not is_logged and (link := stack.console_link()):
        console.print(f"[bold]Look at it[/] (signs in once; `longbatch console` makes more): {escape(link)}")
    if stack.runs_local_engine:
        console.print(_STAND_IN)
    if stack.model is not None:
        console.print(_llama_words(stack.model))
    if urls.api_url:
        console.print(f"[bold]Next[/], in another terminal: {escape(_next(urls.api_url, stack.ready_file))}")


def _llama_words(model: LlamaModel) -> str:
    """Describe the model that llama.cpp serves."""
    found = (
        f"The engine is llama.cpp with [bold]{escape(model.name)}[/]: {model.slots} requests at once of"
        f" {model.context:,} tokens each, on {model.threads} of this machine's cores."
    )
    if model.gguf.text("tokenizer.chat_template") is None:
        found += (
            " [yellow]The model has no chat template:[/] it takes plain prompts, no chats and no documents."
        )
    if model.gguf.path.name == DEFAULT_GGUF:
        found += f" [yellow]{TOY}[/] Name a model of yours with --gguf FILE."
    return found


def _next(api_url: str, ready_file: Path) -> str:
    """Suggest the next command; commands find only a stack in the default directory."""
    command = f"{shlex.quote(sys.argv[0])} summarize FOLDER"
    if ready_file == default_directory() / "ready.json":
        return command
    return f"LONGBATCH_API_URL={api_url} LONGBATCH_API_KEY=lb_… {command}"


def _rows(urls: Urls, stack: Stack) -> list[tuple[str, str]]:
    """List what to print; passwords are only in the ready file."""
    found = {
        "API": urls.api_url,
        "Console": urls.console_url,
        "API docs": f"{urls.api_url}/docs",
        "Metrics": f"{urls.api_url}/metrics",
        "Database": _without_password(urls.database_url),
        "Broker": _without_password(urls.broker_url),
        "Triton gRPC": urls.triton_grpc,
        "Triton HTTP": urls.triton_http,
        "Triton metrics": urls.triton_metrics,
        "llama.cpp" if stack.model else "Engine": (urls.engine_settings or {}).get(_ENGINE),
        "Logs": str(stack.directory / "logs"),
        "Webhook signing secret": str(stack.directory / SIGNING_FILE),
        "All of this, with passwords": str(stack.ready_file),
    }
    return [(name, value) for name, value in found.items() if value]


def _without_password(url: str | None) -> str | None:
    return make_url(url).render_as_string(hide_password=True) if url else None


def _print_event(console: Console, event: ServerStarted | ServerEnded) -> None:
    if isinstance(event, ServerEnded):
        seconds = event.restart_in.total_seconds()
        reason = escape(event.reason)
        console.print(
            f"[red]{event.name} ended[/] ({reason}), restarts in {seconds:g} s: {escape(str(event.log))}"
        )
    elif event.is_restart:
        console.print(f"[green]{event.name} is running again[/] (pid {event.pid}).")
