"""The command `watch`: a progress bar for a job or a batch, until it ends."""

import sys
import time
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from longbatch.cli import output
from longbatch.cli.output import ApiUrl, client_of, notes

_COMPLETED: Final = "completed"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("watch", epilog=output.EXIT_CODES)(watch)


def watch(
    subject: Annotated[str, typer.Argument(metavar="JOB|BATCH", help="job_… or batch_…")],
    *,
    text: Annotated[bool, typer.Option("--text", help="Print a job's output as it is generated.")] = False,
    api_url: ApiUrl = None,
) -> None:
    """Follow a job or a batch until it ends: progress, speed, and estimated time left."""
    if not subject.startswith(("job_", "batch_")):
        raise typer.BadParameter("must be job_… or batch_…", param_hint="JOB|BATCH")
    kind = "batches" if subject.startswith("batch_") else "jobs"
    identifier = "".join(char if char.isalnum() or char == "_" else "." for char in subject)
    query = "?text=true" if text and kind == "jobs" else ""
    with client_of(api_url) as client, _bar() as bar:
        shown = _Shown(bar, bar.add_task(escape(subject), total=None, detail=""))
        for name, fields in client.events(f"/v1/{kind}/{identifier}/events{query}"):
            shown.show(name, fields)
    if query:
        sys.stdout.write("\n")
    if shown.state != _COMPLETED:
        output.print_error(f"the {'batch' if kind == 'batches' else 'job'} is {shown.state}")
        raise typer.Exit(output.EXIT_NOT_COMPLETED)


class _Shown:
    """The progress bar of one job or batch.

    Attributes:
        state: the latest state of the job or batch.
    """

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task
        self._first: tuple[float, int] | None = None
        self.state = "unknown"

    def show(self, name: str, fields: dict[str, Any]) -> None:
        """Update the bar, or print the text, from one event."""
        match name:
            case "text":
                sys.stdout.write(fields["text"])
                sys.stdout.flush()
            case "batch":
                self._show_batch(fields)
            case "job":
                self.state = fields["state"]
                self._show_tokens(fields["completion_tokens"], fields["max_tokens"])
            case "progress":
                self._show_tokens(fields["completion_tokens"], fields["max_tokens"])

    def _show_batch(self, batch: dict[str, Any]) -> None:
        self.state, counts = batch["status"], batch["request_counts"]
        num_ended = counts["completed"] + counts["failed"]
        failed = f", {counts['failed']:,} failed" if counts["failed"] else ""
        detail = f"{self.state}, {num_ended:,} of {counts['total']:,} lines{failed}"
        self._bar.update(self._task, total=counts["total"] or None, completed=num_ended, detail=detail)

    def _show_tokens(self, num_tokens: int, max_tokens: int) -> None:
        now = time.monotonic()
        if self._first is None and num_tokens:
            self._first = (now, num_tokens)
        speed = ""
        if self._first is not None and num_tokens > self._first[1]:
            speed = f", {(num_tokens - self._first[1]) / (now - self._first[0]):,.0f} a second"
        # An output may end long before its limit.
        total = num_tokens if self.state == _COMPLETED else max_tokens
        detail = f"{self.state}, {num_tokens:,} tokens{speed}"
        self._bar.update(self._task, total=total, completed=num_tokens, detail=detail)


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=notes,
    )
