"""The demo: a stack of its own, real documents summarized, a table printed, all of it stopped."""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import httpx2
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cli import demo_documents
from cli.demo_documents import Document
from cli.stack.engine_options import EngineOptions
from cli.stack.options import StackOptions
from cli.stack.ready import Urls
from cli.stack.stack import Stack
from jobs.tokenizer_files import tokenizer_directory
from jobs.tokens import Tokenizer
from jobs.views import JobObject

MAX_TOKENS = 512
_PIPE_WIDTH = 120
_POLL = timedelta(milliseconds=250)
_TERMINAL = frozenset({"completed", "failed", "cancelled", "expired"})
_COLOURS = {
    "completed": "green",
    "failed": "red",
    "cancelled": "yellow",
    "expired": "yellow",
    "running": "cyan",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One document and the job that summarizes it.

    Attributes:
        summary: its whole output once it is finished.
    """

    document: Document
    job: JobObject
    summary: str = ""


def run(docs: Path | None, *, time_scale: float) -> bool:
    """Whether every document was summarized; the stack is gone again.

    Raises:
        ValueError: the folder holds no text, or something that is none.
    """
    # A pipe has no width of its own, and 80 columns would hide the figures.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    tokenizer = tokenizer_directory(None)
    documents = list(demo_documents.chosen(docs, Tokenizer.load(str(tokenizer)).count_text))
    with tempfile.TemporaryDirectory(prefix="longbatch-demo-") as folder:
        options = StackOptions(directory=Path(folder) / "data")
        engine = EngineOptions(tokenizer_dir=tokenizer, time_scale=time_scale)
        stack = Stack(replace(options, engine=engine))
        began = time.monotonic()
        try:
            with console.status("Starting Postgres, Valkey, Triton, API and workers…"):
                stack.start()
            console.print(f"Ready after {time.monotonic() - began:.1f} s at {stack.urls.api_url}.")
            rows = _summarize(console, stack.urls, documents)
        finally:
            stack.stop()
            stack.remove_data()
    _print_outcome(console, rows, time_scale=time_scale)
    return all(row.job["state"] == "completed" for row in rows)


def _summarize(console: Console, urls: Urls, documents: Sequence[Document]) -> list[Row]:
    """Every document was submitted and followed to its end."""
    headers = {"Authorization": f"Bearer {urls.api_key}"}
    api_url = urls.api_url or ""
    with httpx2.Client(base_url=api_url, timeout=30, trust_env=False, headers=headers) as client:
        rows = [Row(document, _submit(client, document)) for document in documents]
        with Live(_progress(rows), console=console, refresh_per_second=4, transient=True) as live:
            while any(row.job["state"] not in _TERMINAL for row in rows):
                time.sleep(_POLL.total_seconds())
                rows = [_poll(client, row) for row in rows]
                live.update(_progress(rows))
        return [replace(row, summary=_result(client, row.job["id"])) for row in rows]


def _submit(client: httpx2.Client, document: Document) -> JobObject:
    body = {"input": document.text, "task": "summarize", "max_tokens": MAX_TOKENS}
    return _job(client.post("/v1/jobs", json=body))


def _poll(client: httpx2.Client, row: Row) -> Row:
    if row.job["state"] in _TERMINAL:
        return row
    return replace(row, job=_job(client.get(f"/v1/jobs/{row.job['id']}")))


def _result(client: httpx2.Client, job_id: str) -> str:
    answer = client.get(f"/v1/jobs/{job_id}/result").raise_for_status().json()
    return str(answer["output"] or "")


def _job(response: httpx2.Response) -> JobObject:
    found: JobObject = response.raise_for_status().json()
    return found


def _progress(rows: Sequence[Row]) -> RenderableType:
    """The jobs that run, with their tokens, and how many are done."""
    running = Table.grid(padding=(0, 2))
    for row in rows:
        if row.job["state"] == "running":
            running.add_row(
                Text(row.document.name, style="cyan"),
                f"{row.job['prompt_tokens'] or 0:,} tokens in",
                f"{row.job['completion_tokens']} out" if row.job["first_token_at"] else "reading…",
            )
    done = sum(row.job["state"] in _TERMINAL for row in rows)
    bar = Table.grid(padding=(0, 2))
    bar.add_row(f"{done}/{len(rows)} documents", ProgressBar(total=len(rows), completed=done, width=40))
    return Group(bar, running)


def _print_outcome(console: Console, rows: Sequence[Row], *, time_scale: float) -> None:
    table = Table(title="Summaries", title_justify="left")
    table.add_column("Document", no_wrap=True, overflow="ellipsis", max_width=24)
    for name in ("State", "Prompt\ntokens", "Waited", "First\ntoken", "Output\ntokens"):
        table.add_column(name, justify="left" if name == "State" else "right", no_wrap=True)
    table.add_column("Summary begins", overflow="ellipsis", ratio=1)
    width = max(16, console.width - 80)  # of a summary's beginning, so that each stays on one line
    for row in rows:
        job = row.job
        table.add_row(
            Text(row.document.name),
            Text(job["state"], style=_COLOURS.get(job["state"], "")),
            "" if job["prompt_tokens"] is None else f"{job['prompt_tokens']:,}",
            _between(job["created_at"], job["started_at"]),
            _between(job["started_at"], job["first_token_at"]),
            f"{job['completion_tokens']:,}",
            Text(" ".join(row.summary.split())[:width] or _error_of(job)),
        )
    console.print(table)
    completed = sum(row.job["state"] == "completed" for row in rows)
    first, last = _span(rows, "first_token_at"), _span(rows, "finalized_at")
    console.print(
        f"{completed} of {len(rows)} documents summarized in {last[1]:.1f} s;"
        f" first output after {first[0]:.1f} s."
    )
    console.print(
        f"The engine was a local stand-in, {time_scale:g} times as fast as an A6000: its summaries are "
        "extracts, not a language model's. Set LONGBATCH_TRITON__URL to use your TensorRT-LLM server.",
        style="dim",
    )


def _span(rows: Sequence[Row], moment: Literal["first_token_at", "finalized_at"]) -> tuple[float, float]:
    """Seconds from the first submission to the first and to the last of these moments; zeros without any."""
    began = min(datetime.fromisoformat(row.job["created_at"]) for row in rows)
    reached = [datetime.fromisoformat(at) for row in rows if (at := row.job[moment])] or [began]
    return (min(reached) - began).total_seconds(), (max(reached) - began).total_seconds()


def _between(start: str | None, end: str | None) -> str:
    if start is None or end is None:
        return ""
    return f"{(datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds():.2f} s"


def _error_of(job: JobObject) -> str:
    return str(job["error"]["message"]) if job["error"] else ""
