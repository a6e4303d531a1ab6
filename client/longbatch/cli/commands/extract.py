"""The command `extract`: fields of a schema from every document, one table; a repeated command resumes."""

from pathlib import Path
from typing import Annotated, Final

import typer

from longbatch.cli import locations, table_file
from longbatch.cli.commands.estimate import estimate_all
from longbatch.cli.commands.summarize import Paths
from longbatch.cli.commands.tables import ChunkTokensOption, TableJob, WatchOption, write_table
from longbatch.cli.field_tables import FieldsFormat, fields_sheet, problem_of
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
from longbatch.cli.schemas import read_joins, read_schema
from longbatch.documents.results import of_extraction
from longbatch.documents.trees import EXTRACTIONS

_EXIT_CODES: Final = (
    "Exit codes: 0 a valid row for every document, 1 a document failed or a row is not valid, 2 usage error,"
    " 3 no server answers, 4 the server refused all, 130 interrupted."
)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("extract", epilog=_EXIT_CODES)(extract)


def extract(  # noqa: PLR0913  # one for each option
    paths: Paths,
    *,
    schema: Annotated[
        Path,
        typer.Option("--schema", metavar="FILE", help="JSON Schema; its properties are the fields."),
    ],
    join: Annotated[
        list[str] | None,
        typer.Option(
            "--join",
            metavar="FIELD=RULE",
            help="How parts of long documents are joined: first, all, sum or most_frequent; may be repeated.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[FieldsFormat, typer.Option("--format", help="Output format.")] = FieldsFormat.CSV,
    output: Annotated[
        str,
        typer.Option(
            "--output", metavar="FILE|-", help="Write the table to this file or s3://bucket/key; - prints."
        ),
    ] = table_file.PRINT,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Upload the documents and tell what extraction would take.")
    ] = False,
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            min=64,
            max=8192,
            help="Approximate length of a reply about all fields, in tokens.",
            show_default="by their number",
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
        bool, typer.Option("--again", help="Extract anew instead of resuming an earlier run.")
    ] = False,
    follow_links: FollowLinksOption = False,
    concurrency: ConcurrencyOption = DEFAULT_CONCURRENCY,
    api_url: ApiUrl = None,
) -> None:
    """Extract fields from documents. The same files with the same schema resume an earlier run."""
    asked = read_schema(schema)
    fields = request(
        schema=asked,
        joins=read_joins(join or [], asked),
        length=length,
        chunk_tokens=chunk_tokens,
        template=template,
        attachments=attachments,
        encoding=encoding,
        model=model,
        priority=priority,
    )
    if kind is FieldsFormat.XLSX and output == table_file.PRINT:
        raise typer.BadParameter("name a file: a workbook cannot be printed", param_hint="--output")
    locations.check_paths(paths)
    if estimate:
        estimate_all(
            paths,
            fields,
            kind=EXTRACTIONS,
            follow_links=follow_links,
            concurrency=concurrency,
            api_url=api_url,
        )
        return
    job = TableJob(
        EXTRACTIONS,
        fields,
        result_of=of_extraction,
        sheet=lambda out: fields_sheet(out, kind, [*asked["properties"]]),
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
