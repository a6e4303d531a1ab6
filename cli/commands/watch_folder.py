"""The command `watch-folder`: summarizes what arrives in one folder into another one."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from cli import output
from cli.commands.summarize import report_skipped
from cli.output import ApiUrl, client_of, notes
from cli.summaries import sources
from cli.summaries.options import (
    DEFAULT_CONCURRENCY,
    ConcurrencyOption,
    FollowLinksOption,
    Format,
    FormatOption,
    with_fields,
)
from cli.summaries.outputs import FolderWriter, LocalFolder
from cli.summaries.progress import progress
from cli.summaries.remote import SummaryClient
from cli.summaries.run import DocumentOutcome, SummaryRun, in_threads
from cli.summaries.watched_folder import Arrival, FolderWatcher, Ledger

_FOREVER: Final = float("inf")  # wait for an unavailable server


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("watch-folder", epilog=output.EXIT_CODES)(watch_folder)


@with_fields()
def watch_folder(  # noqa: PLR0913  # one for each option
    folder: Annotated[
        Path, typer.Argument(metavar="IN", exists=True, file_okay=False, help="Folder to watch.")
    ],
    results: Annotated[
        Path, typer.Argument(metavar="OUT", file_okay=False, help="Folder for the summaries.")
    ],
    *,
    fields: dict[str, object],
    kind: FormatOption = Format.MD,
    poll: Annotated[float, typer.Option("--poll", min=0.05, help="Seconds between two scans.")] = 2.0,
    settle: Annotated[
        float, typer.Option("--settle", min=0, help="Seconds without a change before a file is read.")
    ] = 4.0,
    once: Annotated[bool, typer.Option("--once", help="Exit when every file has its result.")] = False,
    follow_links: FollowLinksOption = False,
    concurrency: ConcurrencyOption = DEFAULT_CONCURRENCY,
    api_url: ApiUrl = None,
) -> None:
    """Summarize what arrives in a folder, until stopped. A file that fails gets an error file instead."""
    watched_folder, out = sources.absolute(str(folder)), sources.absolute(str(results))
    if watched_folder.resolve().is_relative_to(out.resolve()):
        raise typer.BadParameter("must not contain IN: summaries would be summarized", param_hint="OUT")
    with client_of(api_url) as client, _until_stopped() as stop:
        server = SummaryClient(client, patience=_FOREVER, stop=stop)
        with Ledger(out, options=json.dumps([fields, kind])) as ledger:
            ledger.forget_missing(watched_folder)
            find = partial(sources.find, [str(watched_folder)], left_out=out, follow_links=follow_links)
            watched = FolderWatcher(find, ledger, report=report_skipped, settle=settle, poll=poll, stop=stop)
            shown = progress(notes, total=None, live=False)
            run = SummaryRun(server, fields, model=server.model_in_time(), progress=shown)
            with shown:
                num_failed = _serve(
                    run, watched, FolderWriter(LocalFolder(out), kind), once=once, concurrency=concurrency
                )
            if run.fatal_error is not None:
                raise run.fatal_error
            if num_failed:
                output.print_error(f"{num_failed:,} documents did not complete")
                raise typer.Exit(output.EXIT_NOT_COMPLETED)


def _serve(
    run: SummaryRun, watched: FolderWatcher, written: FolderWriter, *, once: bool, concurrency: int
) -> int:
    """Summarize files as they arrive; return how many failed.

    Ends when no file is left, if `once`, or when the server is lost.
    """
    num_failed = 0

    def work(arrival: Arrival) -> tuple[Arrival, DocumentOutcome]:
        return arrival, run.summarize_one(arrival.source)

    arrivals = watched.arrivals(until=lambda is_idle: run.fatal_error is not None or (once and is_idle))
    for _, (arrival, ended) in in_threads(work, arrivals, num_threads=concurrency):
        is_deleted = not ended.is_completed and not arrival.source.path.exists()
        is_done = ended.is_final and not is_deleted and written.take(0, ended.fetch)
        watched.end(arrival, is_done=is_done and run.fatal_error is None)
        num_failed += is_done and not ended.is_completed
    return num_failed


@contextmanager
def _until_stopped() -> Iterator[threading.Event]:
    """Yield an event, set when the block ends; stop cleanly on Ctrl-C and SIGTERM."""
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield stop
    except KeyboardInterrupt:
        notes.print("stopped; run the same command to resume")
    finally:
        stop.set()
