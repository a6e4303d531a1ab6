"""The command `ask`: every question to every document, one table; a repeated command resumes."""

from pathlib import Path
from typing import Annotated, Final

import typer

from longbatch.cli import locations, table_file
from longbatch.cli.answer_tables import TableFormat, answers_sheet, problem_of
from longbatch.cli.commands.estimate import estimate_all
from longbatch.cli.commands.summarize import Paths
from longbatch.cli.commands.tables import ChunkTokensOption, TableJob, WatchOption, write_table
from longbatch.cli.options import (
    DEFAULT_CONCURRENCY,
    AttachmentsOption,
    ConcurrencyOption,
    EncodingOption,
    FollowLinksOption,
    ModelOption,
    PriorityOption,
    TemplateOption,
    request,
)
from longbatch.cli.output import ApiUrl
from longbatch.cli.questions import read_questions
from longbatch.documents.results import of_answers
from longbatch.documents.trees import ANSWERS

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
    chunk_tokens: ChunkTokensOption = None,
    template: TemplateOption = None,
    attachments: AttachmentsOption = None,
    encoding: EncodingOption = None,
    model: ModelOption = None,
    priority: PriorityOption = None,
    watch: WatchOption = False,
    again: Annotated[
        bool, typer.Option("--again", help="Ask anew instead of resuming an earlier run.")
    ] = False,
    follow_links: FollowLinksOption = False,
    concurrency: ConcurrencyOption = DEFAULT_CONCURRENCY,
    api_url: ApiUrl = None,
) -> None:
    """Ask documents questions. The same files with the same questions resume an earlier run."""
    asked = read_questions(question or [], questions)
    fields = request(
        questions=asked,
        length=length,
        chunk_tokens=chunk_tokens,
        template=template,
        attachments=attachments,
        encoding=encoding,
        model=model,
        priority=priority,
    )
    locations.check_paths(paths)
    if estimate:
        estimate_all(
            paths, fields, kind=ANSWERS, follow_links=follow_links, concurrency=concurrency, api_url=api_url
        )
        return
    job = TableJob(
        ANSWERS,
        fields,
        result_of=of_answers,
        sheet=lambda out: answers_sheet(out, kind, asked),
        problem_of=problem_of,
    )
    write_table(
        job,
        paths,
        output,
        watch=watch,
        again=again,
        follow_links=follow_links,
        concurrency=concurrency,
        api_url=api_url,
    )
