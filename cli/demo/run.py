"""The demo: starts a stack of its own, summarizes real documents, prints a table, and cleans up."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cli.demo import documents as demo_documents
from cli.demo.times import Times, times_of
from cli.stack.options import ENGINE_URLS, StackOptions
from cli.stack.ready import Urls
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.llama_options import TOY, LlamaModel, LlamaOptions, bundled_gguf
from cli.stack.stack import Stack
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import tokenizer_directory
from longbatch import calls
from longbatch.cli import progress
from longbatch.cli.output import COLOURS, notes
from longbatch.client import Client
from longbatch.documents import sources
from longbatch.documents.run import DocumentOutcome, DocumentRun
from longbatch.documents.sources import SourceFile
from longbatch.documents.trees import Trees
from longbatch.flows import Retries

_PIPE_WIDTH = 120
_CONTEXT_TOKENS = 96_000
_LLAMA_LENGTH = 100  # of a summary by a small model on the CPU, in tokens
_NUM_AT_ONCE = 32  # all documents of the demo, so that packing has them all to choose from
_RETRIES = Retries(away_seconds=30.0, full_seconds=3600.0, max_faults=4)


@dataclass(frozen=True, slots=True)
class DemoSetting:
    """What the demo runs.

    Attributes:
        engine: of its stack.
        context_tokens: longer documents are read in parts.
        options: of each summary.
        write: writes the demo's own documents into a folder.
        engine_note: describes the engine to the reader.
        servers: names the servers that start.
    """

    engine: EngineOptions | LlamaOptions
    context_tokens: int
    options: Mapping[str, object]
    write: Callable[[Path], None]
    engine_note: str
    servers: str


@dataclass(frozen=True, slots=True)
class Row:
    """One document and its outcome.

    Attributes:
        summary: as the server returns it; None if there is none, and `error` says why.
        tokens: length of the document's text; None if it is not known.
        times: of the jobs that made its summary; None if none ran.
    """

    source: SourceFile
    summary: Mapping[str, Any] | None
    tokens: int | None
    times: Times | None
    error: str


def run_stand_in(docs: Path | None, *, time_scale: float) -> bool:
    """Run the demo on the local engine; see `_run`."""
    tokenizer = tokenizer_directory(None)
    setting = DemoSetting(
        engine=EngineOptions(tokenizer_dir=tokenizer, time_scale=time_scale),
        context_tokens=_CONTEXT_TOKENS,
        options={},
        write=lambda folder: demo_documents.write(folder, Tokenizer.load(str(tokenizer)).count_text),
        engine_note=(
            f"The engine was a local stand-in, {time_scale:g} times as fast as an A6000: its summaries are"
            " extracts, not a language model's. `longbatch up --engine-url URL` uses an engine of yours, and"
            " `make demo ENGINE=llama` a real, small model on the CPU."
        ),
        servers="Postgres, Valkey, Triton, API and workers",
    )
    return _run(docs, setting)


def run_llama(docs: Path | None, *, gguf: Path | None) -> bool:
    """Run the demo on llama.cpp with this model, or SmolLM2; see `_run`."""
    options = LlamaOptions(gguf=gguf or bundled_gguf())
    model = LlamaModel.of(options)
    toy = f" {TOY} Name a model of yours with --gguf FILE." if gguf is None else ""
    setting = DemoSetting(
        engine=options,
        context_tokens=model.context,
        options={"length": _LLAMA_LENGTH},
        write=demo_documents.write_short,
        engine_note=f"The engine was llama.cpp on the CPU with {model.name}.{toy}",
        servers="Postgres, Valkey, llama.cpp, API and workers",
    )
    return _run(docs, setting)


def _run(docs: Path | None, setting: DemoSetting) -> bool:
    """Run the demo and remove its stack; return True if every document was summarized.

    Raises:
        ValueError: the folder contains no documents.
    """
    # A pipe has no width of its own, and 80 columns would hide the figures.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    with tempfile.TemporaryDirectory(prefix="longbatch-demo-") as folder:
        in_folder = sources.find([str(docs or _own_documents(Path(folder), setting.write))])
        found = [replace(source, shown=str(source.name)) for source in in_folder]
        if not found:
            raise ValueError(f"{docs} contains no documents ({', '.join(sorted(sources.SUFFIXES))})")
        stack = Stack(StackOptions(directory=Path(folder) / "data", engine=setting.engine))
        began = time.monotonic()
        try:
            with console.status(f"Starting {setting.servers}…"):
                stack.start()
            console.print(f"Ready after {time.monotonic() - began:.1f} s at {stack.urls.api_url}.")
            rows = _summarize(stack.urls, found, setting.options)
        finally:
            stack.stop()
            stack.remove_data()
    print_outcome(console, rows, setting, os.environ)
    return all(_state(row) == "completed" for row in rows)


def _own_documents(folder: Path, write: Callable[[Path], None]) -> Path:
    documents = folder / "documents"
    documents.mkdir()
    write(documents)
    return documents


def _summarize(urls: Urls, found: Sequence[SourceFile], options: Mapping[str, object]) -> list[Row]:
    """Upload every document and wait for its summary, as `longbatch summarize` does."""
    stop = Event()
    shown = progress.progress(notes, total=len(found), live=False)
    with Client(urls.api_url or "", urls.api_key) as client:
        trees = Trees(retries=_RETRIES)
        model = client.run(calls.served_model())
        run = DocumentRun(trees, dict(options), model=model, observer=shown)
        try:
            with shown:
                ended = dict(client.run_each(run.process, found, concurrency=_NUM_AT_ONCE, stop=stop))
            times = times_of(urls.database_url or "")
            each = (outcome for place in range(len(found)) for outcome in ended[place])
            return [_row(client, trees, outcome, times) for outcome in each]
        finally:
            stop.set()


def _row(client: Client, trees: Trees, ended: DocumentOutcome, times: Mapping[str, Times]) -> Row:
    error = (client.run(ended.fetch()).error or {}).get("message", "")
    if ended.tree_id is None:
        return Row(ended.source, None, None, None, error)
    summary = client.run(trees.whole(ended.tree_id))
    tokens = client.run(trees.document(summary["documents"][0]))["tokens"]
    return Row(ended.source, summary, tokens, times.get(ended.tree_id), error)


def print_outcome(
    console: Console, rows: Sequence[Row], setting: DemoSetting, environment: Mapping[str, str]
) -> None:
    """Print what became of every document, and the engine that did it."""
    table = Table(title="Summaries", title_justify="left")
    table.add_column("Document", no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column("State", no_wrap=True)
    for name in ("Tokens", "Parts", "Waited", "First\ntoken", "Output\ntokens", "Done\nafter"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Summary begins", overflow="ellipsis", no_wrap=True, ratio=1)
    width = max(16, console.width - 100)  # of the start of a summary, so that each row stays on one line
    for row in rows:
        table.add_row(*_cells(row, width))
    console.print(table)
    completed = sum(_state(row) == "completed" for row in rows)
    console.print(f"{completed} of {len(rows)} documents summarized{_took(rows)}.")
    for row in rows:
        if row.summary is not None and (row.tokens or 0) > setting.context_tokens:
            console.print(
                f"{escape(str(row.source.name))} is longer than the context: read in"
                f" {len(row.summary['chunks'])} parts by {row.summary['progress']['jobs']} jobs on"
                f" {row.summary['levels']} levels."
            )
    given = next(filter(None, map(environment.get, ENGINE_URLS)), None)
    note = f"The engine was yours, at {given}." if given else setting.engine_note
    console.print(escape(note), style="dim")
    console.print(
        "The demo keeps nothing: to keep a stack, run `longbatch up`; to keep summaries, run"
        " `longbatch summarize FOLDER --output DIR`.",
        style="dim",
    )


def _cells(row: Row, width: int) -> list[str | Text]:
    state = Text(_state(row), style=COLOURS.get(_state(row), ""))
    if row.summary is None:
        return [Text(str(row.source.name)), state, *[""] * 6, Text(row.error)]
    created, times = datetime.fromisoformat(row.summary["created_at"]), row.times
    return [
        Text(str(row.source.name)),
        state,
        "" if row.tokens is None else f"{row.tokens:,}",
        str(len(row.summary["chunks"])),
        _between(created, times.started_at if times else None),
        _between(times.started_at if times else None, times.first_token_at if times else None),
        f"{row.summary['usage']['completion_tokens']:,}",
        _between(created, _ended_at(row)),
        Text(" ".join((row.summary["summary"] or row.error).split())[:width]),
    ]


def _state(row: Row) -> str:
    return "failed" if row.summary is None else str(row.summary["state"])


def _took(rows: Sequence[Row]) -> str:
    """Describe the time taken: ` in 20.1 s; first output after 1.2 s`."""
    summaries = [row.summary for row in rows if row.summary is not None]
    if not summaries:
        return ""
    began = min(datetime.fromisoformat(each["created_at"]) for each in summaries)
    ended = max((at for row in rows if (at := _ended_at(row))), default=None)
    first = min((row.times.first_token_at for row in rows if row.times), default=None)
    return f" in {_between(began, ended)}; first output after {_between(began, first)}"


def _ended_at(row: Row) -> datetime | None:
    at = row.summary["finalized_at"] if row.summary is not None else None
    return None if at is None else datetime.fromisoformat(at)


def _between(start: datetime | None, end: datetime | None) -> str:
    return "" if start is None or end is None else f"{(end - start).total_seconds():.2f} s"
