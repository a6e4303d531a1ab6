"""The verb `summarize`: documents in, summaries out; the same command again goes on where it was."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Annotated, Final

import typer
from rich.markup import escape

from cli import output
from cli.output import ApiUrl, client_of, notes
from cli.summaries import options, sources
from cli.summaries import results as summary_results
from cli.summaries.options import (
    DEFAULT_CONCURRENCY,
    ChunkOption,
    ConcurrencyOption,
    FocusOption,
    Format,
    FormatOption,
    InstructionsOption,
    LanguageOption,
    LengthOption,
    ModelOption,
    OnGapOption,
    OverlapOption,
    PriorityOption,
    StyleOption,
)
from cli.summaries.outputs import Output, Printed, Written
from cli.summaries.progress import Progress, progress
from cli.summaries.remote import Summaries
from cli.summaries.results import Result
from cli.summaries.run import Run, in_threads
from cli.summaries.sources import Source

EXIT_INTERRUPTED: Final = 130  # 128 and SIGINT, as shells count
PATIENCE_SECONDS: Final = 180.0  # a server that is restarted and migrated is back by then
_PRINT: Final = "-"
EXIT_CODES: Final = (
    "Exit codes: 0 all are summarized, 1 one is not, 2 wrong usage, 3 no server answers,"
    " 4 the server refused all, 130 interrupted."
)

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...", help="Files, and folders with all documents below them.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """The application has the verb."""
    app.command("summarize", epilog=EXIT_CODES)(summarize)


def summarize(  # noqa: PLR0913  # every field of a summary is an option
    paths: Paths,
    *,
    style: StyleOption = None,
    length: LengthOption = None,
    language: LanguageOption = None,
    focus: FocusOption = None,
    instructions: InstructionsOption = None,
    on_gap: OnGapOption = None,
    chunk_tokens: ChunkOption = None,
    overlap_tokens: OverlapOption = None,
    model: ModelOption = None,
    priority: PriorityOption = None,
    combine: Annotated[
        bool, typer.Option("--combine", help="One summary over all, at most 1,000 documents.")
    ] = False,
    output: Annotated[
        str, typer.Option("--output", metavar="DIR|-", help="A file for each document, or print.")
    ] = _PRINT,
    kind: FormatOption = Format.MD,
    watch: Annotated[
        bool, typer.Option("--watch", help="Tell how far each document is, also where no terminal is.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Do not go on with an earlier run, start a new one.")
    ] = False,
    concurrency: ConcurrencyOption = DEFAULT_CONCURRENCY,
    api_url: ApiUrl = None,
) -> None:
    """Summarize documents of any length. The same files with the same options go on where they were."""
    fields = options.request(
        style=style,
        length=length,
        language=language,
        focus=focus,
        instructions=instructions,
        on_gap=on_gap,
        chunk_tokens=chunk_tokens,
        overlap_tokens=overlap_tokens,
        model=model,
        priority=priority,
    )
    check_paths(paths)
    folder = None if output == _PRINT else sources.absolute(output)
    if folder is not None:
        check_folders(paths, folder)
        _check_places(paths, folder, kind, combine=combine)
    others: Counter[str] = Counter()
    total = sum(1 for _ in sources.find(paths, left_out=folder, others=others))
    if not total:
        raise typer.BadParameter(sources.NOTHING, param_hint="PATH")
    tell_others(others)
    found = sources.find(paths, left_out=folder)
    with client_of(api_url) as client, stopping() as stop:
        server = Summaries(client, patience=PATIENCE_SECONDS, stop=stop)
        shown = progress(notes, total=total, live=watch)
        run = Run(server, fields, model=server.model(), progress=shown, again=again)
        if combine:
            num_completed = _combined(run, list(found), folder, kind, shown, concurrency)
        else:
            num_completed = _each(run, found, _output(folder, kind, shown), shown, concurrency)
    conclude(run, num_completed=num_completed, total=total)


@contextmanager
def stopping() -> Iterator[Event]:
    """Set when the block has ended, however; Ctrl-C ends the verb with a word about how to go on."""
    stop = Event()
    try:
        yield stop
    except KeyboardInterrupt:
        notes.print("interrupted: the server goes on; the same command picks it up")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        stop.set()


def tell_others(others: Mapping[str, int]) -> None:
    """A line about the files in folders that are of no kind that is read, if there are any."""
    if others:
        kinds = ", ".join(f"{number:,} {escape(suffix)}" for suffix, number in sorted(others.items()))
        notes.print(f"left out, of other kinds: {kinds}")


def conclude(run: Run, *, num_completed: int, total: int) -> None:
    """Nothing, if all has gone well; else the verb ends with a line and its exit code."""
    if run.lost is not None:
        raise run.lost
    if num_completed < total:
        output.complain(f"{total - num_completed:,} of {total:,} documents did not complete")
        raise typer.Exit(output.EXIT_NOT_COMPLETED)


def _each(run: Run, found: Iterator[Source], output: Output, shown: Progress, concurrency: int) -> int:
    """How many of the documents completed; each has its own summary."""
    num_completed = 0
    try:
        with shown:
            for place, ended in in_threads(run.one, found, num_threads=concurrency):
                num_completed += output.take(place, ended.fetch) and ended.is_completed
    finally:
        output.close()
    return num_completed


def _combined(
    run: Run, found: list[Source], folder: Path | None, kind: Format, shown: Progress, concurrency: int
) -> int:
    """How many of the documents are in the one summary."""
    with shown:
        sent = dict(in_threads(run.add, found, num_threads=concurrency))
        results: list[Result] = []
        results = run.combined([(source, sent[place]) for place, source in enumerate(found)])
    if folder is None:
        sys.stdout.write(summary_results.combined(results, kind, summary_results.as_shown))
    else:
        try:
            Written(folder, kind).write_combined(results)
        except OSError as error:
            output.complain(f"the summary cannot be written: {error}")
            return 0
    return sum(result.error is None for result in results)


def _output(folder: Path | None, kind: Format, shown: Progress) -> Output:
    return Printed(kind, shown.aside) if folder is None else Written(folder, kind)


def check_paths(paths: Sequence[str]) -> None:
    """Something is where the command line says; what is missing beside it is told as any unreadable file.

    Raises:
        typer.BadParameter: nothing is.
    """
    if not any(sources.is_there(path) for path in paths):
        name = sources.printable(paths[0])
        raise typer.BadParameter(f"there is no file or folder {name}", param_hint="PATH")


def check_folders(paths: Sequence[str], folder: Path) -> None:
    """Nothing that is written becomes something to read.

    Raises:
        typer.BadParameter: the folder is one of the paths.
    """
    if any(sources.is_same(sources.absolute(path), folder) for path in paths):
        raise typer.BadParameter("the summaries would be documents themselves", param_hint="--output")


def _check_places(paths: Sequence[str], folder: Path, kind: Format, *, combine: bool) -> None:
    """No document is written over, or taken away for the failure file of an earlier run.

    Raises:
        typer.BadParameter: one would be.
    """
    named = {sources.absolute(path).resolve() for path in paths}
    if not any(each.is_relative_to(folder.resolve()) for each in named):
        return  # what folders give is never below this one
    written = Written(folder, kind)
    found = sources.find(paths, left_out=folder)
    places = [written.combined_place] if combine else (each for one in found for each in written.places(one))
    for place in places:
        if place.resolve() in named:
            raise typer.BadParameter(
                f"{place} is a document and would be written over", param_hint="--output"
            )
