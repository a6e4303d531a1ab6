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

from longbatch.cli import output
from longbatch.cli.commands.summarize import Group, report_skipped
from longbatch.cli.options import (
    DEFAULT_CONCURRENCY,
    ConcurrencyOption,
    FollowLinksOption,
    Format,
    FormatOption,
    with_fields,
)
from longbatch.cli.output import ApiUrl, client_of, notes
from longbatch.cli.outputs import FolderWriter, LocalFolder
from longbatch.cli.progress import progress
from longbatch.cli.watched_folder import Arrival, FolderWatcher, Ledger
from longbatch.documents import sources
from longbatch.documents.run import DocumentOutcome, DocumentRun
from longbatch.documents.trees import Trees
from longbatch.flows import Flow, Retries

# Wait for an unavailable server.
_FOREVER: Final = Retries(away_seconds=float("inf"), full_seconds=float("inf"), max_faults=4)


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
        trees = Trees(retries=_FOREVER)
        with Ledger(out, options=json.dumps([fields, kind])) as ledger:
            ledger.forget_missing(watched_folder)
            find = partial(sources.find, [str(watched_folder)], left_out=out, follow_links=follow_links)
            watched = FolderWatcher(find, ledger, report=report_skipped, settle=settle, poll=poll, stop=stop)
            shown = progress(notes, total=None, live=False)
            model = client.run(trees.model(), stop=stop)
            run = DocumentRun(trees, fields, model=model, observer=shown)
            group = Group(client, run, concurrency=concurrency, stop=stop)
            with shown:
                num_failed = _serve(group, watched, FolderWriter(LocalFolder(out), kind), once=once)
            if run.fatal_error is not None:
                raise run.fatal_error
            if num_failed:
                output.print_error(f"{num_failed:,} documents did not complete")
                raise typer.Exit(output.EXIT_NOT_COMPLETED)


def _serve(group: Group, watched: FolderWatcher, written: FolderWriter, *, once: bool) -> int:
    """Summarize files as they arrive; return how many failed.

    Ends when no file is left, if `once`, or when the server is lost.
    """
    num_failed, run = 0, group.run

    def process(arrival: Arrival) -> Flow[tuple[Arrival, list[DocumentOutcome]]]:
        return arrival, (yield from run.process(arrival.source))

    arrivals = watched.arrivals(until=lambda is_idle: run.fatal_error is not None or (once and is_idle))
    each = group.client.run_each(process, arrivals, concurrency=group.concurrency, stop=group.stop)
    for _, (arrival, ended) in each:
        is_deleted = not ended[0].is_completed and not arrival.source.path.exists()
        is_final = all(each.is_final for each in ended) and not is_deleted
        is_done = is_final and written.take(0, [group.fetching(each) for each in ended])
        watched.end(arrival, is_done=is_done and run.fatal_error is None)
        num_failed += is_done and sum(not each.is_completed for each in ended)
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
