"""The commands for jobs: submit, list, show, attempts, result, cancel."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from longbatch import calls
from longbatch.backports import moment_of
from longbatch.cli.output import (
    EXIT_CODES,
    EXIT_NOT_COMPLETED,
    ApiUrl,
    AsJson,
    JobId,
    client_of,
    coloured,
    given,
    notes,
    output,
    pairs,
    print_error,
    print_json,
    print_text,
)
from longbatch.cli.queue_text import in_words, utc_now
from longbatch.client import Client
from longbatch.options import JobState, Priority, Task

_ID_WIDTH: Final = len("job_") + 32
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the job ends.")]
Metadata = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="KEY=VALUE", help="Can be repeated.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for name, command in _COMMANDS.items():
        app.command(name, epilog=EXIT_CODES)(command)


def submit(  # noqa: PLR0913  # every field of a job is an option
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="A UTF-8 text file, or - for standard input.")
    ],
    *,
    task: Annotated[
        Task,
        typer.Option(help="summarize wraps the text in a summarization prompt; generate sends it as it is."),
    ] = "generate",
    instructions: Annotated[str | None, typer.Option(help="Replace the task's instructions.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum tokens to generate.", show_default="1024")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 to 2.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Above 0, up to 1.")] = None,
    top_k: Annotated[int | None, typer.Option(help="1 to 1024.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End the output at this text; up to four.")] = None,
    priority: Annotated[Priority, typer.Option(help="Priority among your own jobs.")] = "normal",
    custom_id: Annotated[str | None, typer.Option(help="Your own name for the job.")] = None,
    metadata: Metadata = None,
    completion_window: Annotated[
        str | None, typer.Option(help="1h, 24h or 7d; the job expires after it.")
    ] = None,
    webhook_url: Annotated[str | None, typer.Option(help="URL to notify when the job ends.")] = None,
    engine_inputs: Annotated[
        Path | None,
        typer.Option(help="A JSON file of tensors for the engine, by name.", exists=True, dir_okay=False),
    ] = None,
    engine_output: Annotated[
        list[str] | None, typer.Option(help="Keep this tensor of the engine's as a file; can be repeated.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Requests with the same key create one job.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait, then print the output.")] = False,
    as_json: AsJson = False,
    api_url: ApiUrl = None,
) -> None:
    """Submit a text as a job and print its id, or wait and print its output."""
    body = given(
        input=_read(file),
        task=task,
        instructions=instructions,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=stop or None,
        priority=priority,
        custom_id=custom_id,
        metadata=pairs(metadata, option="--metadata") or None,
        completion_window=completion_window,
        webhook_url=webhook_url,
        engine_inputs=_tensors(engine_inputs),
        engine_outputs=engine_output or None,
    )
    with client_of(api_url) as client:
        job = client.run(calls.submit_job(body, key=idempotency_key))
        if wait:
            _wait(client, job["id"])
            _print_result(client, job["id"], as_json=as_json)
        elif as_json:
            print_json(job)
        else:
            print_text(job["id"])


def list_jobs(
    *,
    state: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    task: Annotated[Task | None, typer.Option(help="Only jobs with this task.")] = None,
    custom_id: Annotated[str | None, typer.Option(help="Only jobs with this custom id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of jobs to list.")] = 20,
    after: Annotated[str | None, typer.Option(help="Start after this job.")] = None,
    as_json: AsJson = False,
    api_url: ApiUrl = None,
) -> None:
    """List jobs, newest first."""
    query = given(state=state, task=task, custom_id=custom_id, after=after, limit=limit)
    with client_of(api_url) as client:
        page = client.run(calls.page("/v1/jobs", query))
    if as_json:
        print_json(page)
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("job", min_width=_ID_WIDTH)  # a truncated id is of no use
    for heading in ("state", "task", "custom id", "in", "out", "created"):
        table.add_column(heading, overflow="fold")
    for job in page["data"]:
        table.add_row(
            job["id"],
            coloured(job["state"]),
            job["task"],
            escape(job["custom_id"] or ""),
            "" if job["prompt_tokens"] is None else f"{job['prompt_tokens']:,}",
            f"{job['completion_tokens']:,}",
            _local(job["created_at"]),
        )
    output.print(table)
    if page["has_more"]:
        notes.print(f"More with --after {page['last_id']}")


def show(job_id: JobId, *, wait: Wait = False, as_json: AsJson = False, api_url: ApiUrl = None) -> None:
    """Show a job's state and details, and why it is waiting."""
    with client_of(api_url) as client:
        job = _wait(client, job_id) if wait else client.run(calls.job(job_id))
    if as_json:
        print_json(job)
        return
    table = Table.grid(padding=(0, 2))
    for name, value in job.items():
        if name == "queue" and (queue := job["queue"]):
            table.add_row("[bold]queue[/]", escape(in_words(queue, now=utc_now())))
        elif name == "error" and (error := job["error"]):
            table.add_row("[bold]error[/]", escape(f"{error['message']} [{error['code']}]"))
        elif name != "object" and value not in (None, {}, False):
            table.add_row(f"[bold]{name}[/]", coloured(str(value)) if name == "state" else escape(str(value)))
    output.print(table)


def attempts(job_id: JobId, *, as_json: AsJson = False, api_url: ApiUrl = None) -> None:
    """List the runs of a job, oldest first, and how each ended."""
    with client_of(api_url) as client:
        found = client.run(calls.job_attempts(job_id))
    if as_json:
        print_json(found)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("engine", "started", "seconds", "outcome", "in", "cached", "out", "blocks"):
        table.add_column(heading, overflow="fold")
    for run in found["data"]:
        code = f" [{run['error_code']}]" if run["error_code"] else ""
        counts = (run[name] for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "blocks"))
        table.add_row(
            escape(run["engine"]),
            _local(run["started_at"]),
            _seconds(run["started_at"], run["ended_at"]),
            escape(f"{run['outcome'] or 'running'}{code}"),
            *("" if count is None else f"{count:,}" for count in counts),
        )
    output.print(table)


def result(job_id: JobId, *, wait: Wait = False, as_json: AsJson = False, api_url: ApiUrl = None) -> None:
    """Print a job's output, or the part produced so far if it did not complete."""
    with client_of(api_url) as client:
        if wait:
            _wait(client, job_id)
        _print_result(client, job_id, as_json=as_json)


def cancel(
    job_ids: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="job_…")] = None,
    *,
    state: Annotated[JobState | None, typer.Option(help="Filter by state, instead of ids.")] = None,
    task: Annotated[Task | None, typer.Option(help="Filter by task, instead of ids.")] = None,
    custom_id: Annotated[str | None, typer.Option(help="Filter by custom id, instead of ids.")] = None,
    metadata: Metadata = None,
    as_json: AsJson = False,
    api_url: ApiUrl = None,
) -> None:
    """Cancel jobs by id, or all that match every filter. Jobs that have ended stay as they are."""
    labels = pairs(metadata, option="--metadata") or None
    filters = given(state=state, task=task, custom_id=custom_id, metadata=labels)
    if bool(job_ids) == bool(filters):
        raise typer.BadParameter("give either ids or filters")
    with client_of(api_url) as client:
        if filters:
            num_cancelled = client.run(calls.cancel_jobs(filters))
            shown = {"object": "cancellation", "cancelled": num_cancelled}
            print_json(shown) if as_json else print_text(f"{num_cancelled} cancelled")
            return
        for job_id in job_ids or []:
            job = client.run(calls.cancel_job(job_id))
            asked = job["cancel_requested"] and job["state"] == "running"
            shown_state = "running, will stop" if asked else job["state"]
            print_json(job) if as_json else print_text(f"{job['id']} {shown_state}")


_COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "submit": submit,
    "list": list_jobs,
    "show": show,
    "attempts": attempts,
    "result": result,
    "cancel": cancel,
}


_PDF: Final = b"%PDF-"  # a PDF without pictures may decode as UTF-8, but makes no prompt
_NO_TEXT: Final = "{} is not UTF-8 text; use `longbatch summarize` for documents"


def _read(file: str) -> str:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        if content.startswith(_PDF):
            raise typer.BadParameter(_NO_TEXT.format(file), param_hint="FILE")
        return content.decode()
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from error
    except UnicodeDecodeError as error:
        raise typer.BadParameter(_NO_TEXT.format(file), param_hint="FILE") from error


def _tensors(path: Path | None) -> Any:  # noqa: ANN401  # JSON, which the server checks
    if path is None:
        return None
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is not JSON", param_hint="--engine-inputs") from error


def _wait(client: Client, job_id: str) -> dict[str, Any]:
    """Wait until the job ends; meanwhile show its state on a terminal."""
    with notes.status(escape(job_id)) as status:
        shown = calls.wait_for_job(job_id, on_change=lambda job: status.update(_progress(job)))
        return client.run(shown)


def _progress(job: dict[str, Any]) -> str:
    tokens = f", {job['completion_tokens']} tokens" if job["completion_tokens"] else ""
    queue = f", {escape(in_words(job['queue'], now=utc_now()))}" if job["queue"] else ""
    return f"{job['id']} {job['state']}{tokens}{queue}"


def _print_result(client: Client, job_id: str, *, as_json: bool) -> None:
    """Print the output; exit with code 1 unless the job completed."""
    found = client.run(calls.job_result(job_id))
    if as_json:
        print_json(found)
    elif found["output"] is not None:
        print_text(found["output"])
    if found["state"] != "completed":
        reason = f": {found['error']['message']}" if found["error"] else ""
        print_error(f"the job is {found['state']}{reason}")
        raise typer.Exit(EXIT_NOT_COMPLETED)


def _seconds(start: str, end: str | None) -> str:
    if end is None:
        return ""
    return f"{(moment_of(end) - moment_of(start)).total_seconds():,.1f}"


def _local(moment: str) -> str:
    return moment_of(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")
