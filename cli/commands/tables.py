"""One table about many documents: what the commands that write one share."""

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TextIO

import typer

from cli.commands.summarize import PATIENCE_SECONDS, conclude, report_skipped, stopping
from cli.output import client_of, notes
from cli.summaries import locations, table_file
from cli.summaries.progress import progress
from cli.summaries.remote import Kind, SummaryClient
from cli.summaries.results import DocumentResult
from cli.summaries.run import SummaryRun, in_threads
from cli.summaries.sources import Skipped, SourceFile
from cli.summaries.tables import OrderedTable, Sheet

ChunkTokensOption = Annotated[
    int | None,
    typer.Option(
        "--chunk-tokens",
        min=64,
        max=131_072,
        help="Size in tokens of the parts of long documents.",
        show_default="to suit the engine",
    ),
]
WatchOption = Annotated[
    bool, typer.Option("--watch", help="Show progress even when standard error is not a terminal.")
]


@dataclass(frozen=True, slots=True)
class TableJob:
    """What is asked of each document, and the table that it fills.

    Attributes:
        fields: of the request for each document.
        result_of: makes the result of what the server found.
        sheet: begins the table.
        problem_of: see `OrderedTable`.
    """

    kind: Kind
    fields: dict[str, object]
    result_of: Callable[[SourceFile, Mapping[str, Any]], DocumentResult]
    sheet: Callable[[TextIO], Sheet]
    problem_of: Callable[[DocumentResult], str | None]


def write_table(
    job: TableJob,
    paths: list[str],
    output: str,
    *,
    watch: bool,
    again: bool,
    follow_links: bool,
    concurrency: int,
    api_url: str | None,
) -> None:
    """Ask every document, and write the table.

    Raises:
        typer.BadParameter: there is no document, or the output would overwrite one.
        typer.Exit: a document has a problem, or the output cannot be written.
    """
    skipped = Skipped()
    total = table_file.count_documents(paths, output, skipped=skipped, follow_links=follow_links)
    report_skipped(skipped)
    with client_of(api_url) as client, stopping() as stop:
        server = SummaryClient(client, patience=PATIENCE_SECONDS, stop=stop, kind=job.kind)
        # What no server takes is refused before a document is sent.
        served, _ = server.model(), server.queued_seconds(job.fields)
        shown = progress(notes, total=total, live=watch)
        run = SummaryRun(
            server, job.fields, model=served, progress=shown, again=again, result_of=job.result_of
        )
        with table_file.opened(output) as out:
            aside = shown.aside if out is sys.stdout and out.isatty() else nullcontext
            say = partial(notes.print, markup=False)
            table = OrderedTable(job.sheet(out), problem_of=job.problem_of, say=say, aside=aside)
            try:
                with shown:
                    found = locations.find(paths, follow_links=follow_links)
                    for place, ended in in_threads(run.summarize_one, found, num_threads=concurrency):
                        table.take(place, ended.fetch)
            finally:
                table.close()
            if run.fatal_error is not None:
                raise run.fatal_error  # the file of an earlier run stays
    conclude(run, num_completed=table.num_complete, total=total)
