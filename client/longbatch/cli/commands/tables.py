"""One table about many documents: what the commands that write one share."""

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TextIO

import typer

from longbatch import calls
from longbatch.cli import table_file
from longbatch.cli.commands.summarize import Group, Tally, conclude, report_skipped, stopping
from longbatch.cli.output import client_of, notes
from longbatch.cli.progress import progress
from longbatch.cli.tables import OrderedTable, Sheet
from longbatch.documents.locations import find
from longbatch.documents.opening import Opening
from longbatch.documents.results import DocumentResult
from longbatch.documents.run import DocumentRun
from longbatch.documents.sources import Skipped, SourceFile
from longbatch.documents.trees import Kind, Trees

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
    survey = table_file.survey(paths, output, skipped=skipped, follow_links=follow_links)
    report_skipped(skipped)
    with client_of(api_url) as client, stopping() as stop:
        total = survey.num_documents
        trees, shown = Trees(job.kind), progress(notes, total=total, live=watch)
        opening = Opening(trees, job.fields, survey, min(total, concurrency))
        model = client.run(calls.served_model())
        run = DocumentRun(
            trees,
            job.fields,
            model=model,
            observer=shown,
            again=again,
            result_of=job.result_of,
            opening=opening,
        )
        group = Group(client, run, concurrency=concurrency, stop=stop)
        # What no server takes is refused before a document is sent.
        group.perform(trees.queued_seconds(job.fields))
        group.report_duration(opening)
        with table_file.opened(output) as out:
            aside = shown.aside if out is sys.stdout and out.isatty() else nullcontext
            say = partial(notes.print, markup=False)
            table = OrderedTable(job.sheet(out), problem_of=job.problem_of, say=say, aside=aside)
            try:
                with shown:
                    found = (
                        source
                        for source in find(paths, follow_links=follow_links)
                        if not table_file.is_output(source, output)
                    )
                    for place, ended in group.each_placed(survey.ordered(found)):
                        table.take(place, [group.fetching(each) for each in ended])
            finally:
                table.close()
            if run.fatal_error is not None:
                raise run.fatal_error  # the file of an earlier run stays
    conclude(run, Tally(table.num_complete, table.num_warned, table.num_documents))
