"""The command `ask`: every question to every document, one table; a repeated command resumes."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Final, TextIO

import typer

from cli import output as printing
from cli.commands.estimate import estimate_all
from cli.commands.summarize import PATIENCE_SECONDS, Paths, conclude, report_skipped, stopping
from cli.output import ApiUrl, client_of, notes
from cli.questions.reading import read_questions
from cli.questions.tables import TableFormat, TableWriter
from cli.summaries import buckets, locations, sources
from cli.summaries.options import DEFAULT_CONCURRENCY, ConcurrencyOption, Priority, request
from cli.summaries.progress import progress
from cli.summaries.remote import ANSWERS, SummaryClient
from cli.summaries.results import of_answers
from cli.summaries.run import SummaryRun, in_threads
from cli.whole_files import shared_mode, writing_whole

_PRINT: Final = "-"
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
        str, typer.Option("--output", metavar="FILE|-", help="Write the table to this file; - prints.")
    ] = _PRINT,
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
    total = _num_documents(paths, output)
    with client_of(api_url) as client, stopping() as stop:
        server = SummaryClient(client, patience=PATIENCE_SECONDS, stop=stop, kind=ANSWERS)
        # Questions that no server takes are refused before a document is sent.
        served, _ = server.model(), server.queued_seconds(fields)
        shown = progress(notes, total=total, live=watch)
        run = SummaryRun(server, fields, model=served, progress=shown, again=again, result_of=of_answers)
        with _opened(output) as out:
            aside = shown.aside if out is sys.stdout and out.isatty() else nullcontext
            table = TableWriter(out, kind, asked, aside=aside)
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


def _num_documents(paths: list[str], output: str) -> int:
    """Count the documents.

    Raises:
        typer.BadParameter: there is none, or the output would overwrite one.
    """
    if buckets.is_bucket(output):
        raise typer.BadParameter("must be a file on this machine", param_hint="--output")
    target = None if output == _PRINT else sources.absolute(output)
    if target is not None and target.is_dir():
        raise typer.BadParameter(f"{output} is a folder; name a file", param_hint="--output")
    others: Counter[str] = Counter()
    total = 0
    for source in locations.find(paths, others=others):
        total += 1
        if target is not None and sources.is_same(source.path, target):
            message = f"{source.shown} is a document and would be overwritten"
            raise typer.BadParameter(message, param_hint="--output")
    if not total:
        raise typer.BadParameter(sources.NOTHING, param_hint="PATH")
    report_skipped(others)
    return total


@contextmanager
def _opened(output: str) -> Iterator[TextIO]:
    """Open the output; a file appears whole, after the block."""
    if output == _PRINT:
        yield sys.stdout
        return
    path = sources.absolute(output)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing_whole(path, mode=shared_mode()) as file:
            yield file
    except OSError as error:
        printing.print_error(f"cannot write {output}: {error}")
        raise typer.Exit(printing.EXIT_NOT_COMPLETED) from error
