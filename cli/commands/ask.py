"""The command `ask`: every question to every document, one table; a repeated command resumes."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from cli.commands.estimate import estimate_all
from cli.commands.summarize import PATIENCE_SECONDS, Paths, conclude, report_skipped, stopping
from cli.output import ApiUrl, client_of, notes
from cli.questions.reading import read_questions
from cli.questions.tables import TableFormat, answers_sheet, problem_of
from cli.summaries import locations, table_file
from cli.summaries.options import DEFAULT_CONCURRENCY, ConcurrencyOption, Priority, request
from cli.summaries.progress import progress
from cli.summaries.remote import ANSWERS, Kind, SummaryClient
from cli.summaries.results import DocumentResult, of_answers
from cli.summaries.run import SummaryRun, in_threads
from cli.summaries.sources import SourceFile
from cli.summaries.tables import OrderedTable, Sheet

_EXIT_CODES: Final = (
    "Exit codes: 0 all questions asked of all documents, 1 a document or question failed, 2 usage error,"
    " 3 no server answers, 4 the server refused all, 130 interrupted."
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("ask", epilog=_EXIT_CODES)(ask)


def ask(  # noqa: PLR0913  # one for each option
    paths: Paths,
    *,
    question: Annotated[
        list[str] | None,
        typer.Option("-q", "--question", help="A question; may be repeated.", show_default=False),
    ] = None,
    questions: Annotated[
        Path | None, typer.Option("--questions", metavar="FILE", help="A file of questions, one a line.")
    ] = None,
    kind: Annotated[TableFormat, typer.Option("--format", help="Output format.")] = TableFormat.CSV,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            metavar="FILE|-",
            help="Write the table to this file, or to s3://bucket/file; - prints.",
        ),
    ] = table_file.PRINT,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Upload the documents and tell what asking would take.")
    ] = False,
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            min=64,
            max=4096,
            help="Approximate length of an answer with its quote, in tokens.",
            show_default="256",
        ),
    ] = None,
    chunk_tokens: Annotated[
        int | None,
        typer.Option(
            "--chunk-tokens",
            min=64,
            max=131_072,
            help="Size in tokens of the parts of long documents.",
            show_default="to suit the engine",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model to use.", show_default="the one served")
    ] = None,
    priority: Annotated[
        Priority | None,
        typer.Option("--priority", help="Priority among your own jobs.", show_default="normal"),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show progress even when standard error is not a terminal.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Ask anew instead of resuming an earlier run.")
    ] = False,
    concurrency: ConcurrencyOption = DEFAULT_CONCURRENCY,
    api_url: ApiUrl = None,
) -> None:
    """Ask documents questions. The same files with the same questions resume an earlier run."""
    asked = read_questions(question or [], questions)
    fields = request(
        questions=asked, length=length, chunk_tokens=chunk_tokens, model=model, priority=priority
    )
    locations.check_paths(paths)
    if estimate:
        estimate_all(paths, fields, kind=ANSWERS, concurrency=concurrency, api_url=api_url)
        return
    job = TableJob(
        ANSWERS,
        fields,
        result_of=of_answers,
        sheet=lambda out: answers_sheet(out, kind, asked),
        problem_of=problem_of,
    )
    write_table(job, paths, output, watch=watch, again=again, concurrency=concurrency, api_url=api_url)


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
    concurrency: int,
    api_url: str | None,
) -> None:
    """Ask every document, and write the table.

    Raises:
        typer.BadParameter: there is no document, or the output would overwrite one.
        typer.Exit: a document has a problem, or the output cannot be written.
    """
    others: Counter[str] = Counter()
    total = table_file.count_documents(paths, output, others=others)
    report_skipped(others)
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
                    found = locations.find(paths)
                    for place, ended in in_threads(run.summarize_one, found, num_threads=concurrency):
                        table.take(place, ended.fetch)
            finally:
                table.close()
            if run.fatal_error is not None:
                raise run.fatal_error  # the file of an earlier run stays
    conclude(run, num_completed=table.num_complete, total=total)
