"""The command `summarize`: documents in, summaries out; a repeated command resumes where it stopped."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from typing import Annotated, Final, TypeVar

import typer
from rich.markup import escape

from longbatch import calls
from longbatch.cli import locations, output, result_files
from longbatch.cli.options import (
    DEFAULT_CONCURRENCY,
    ConcurrencyOption,
    FollowLinksOption,
    Format,
    FormatOption,
    with_fields,
)
from longbatch.cli.output import ApiUrl, client_of, notes
from longbatch.cli.outputs import ResultWriter, StdoutWriter
from longbatch.cli.progress import ProgressDisplay, progress
from longbatch.cli.queue_text import about
from longbatch.client import Client
from longbatch.documents import sources
from longbatch.documents.locations import find
from longbatch.documents.opening import Opening
from longbatch.documents.results import DocumentResult
from longbatch.documents.run import DocumentOutcome, DocumentRun
from longbatch.documents.sources import Skipped, SourceFile, Survey
from longbatch.documents.trees import Trees
from longbatch.errors import LongbatchError
from longbatch.flows import Flow

T = TypeVar("T")
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, the shells' convention
_PRINT: Final = "-"
_MAX_NAMED: Final = 5  # of the links that are skipped
EXIT_CODES: Final = (
    "Exit codes: 0 all documents summarized, 1 a document failed, 2 usage error, 3 no server answers,"
    " 4 the server refused all, 130 interrupted."
)

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="Files, and folders to search for documents; or s3://bucket/prefix.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("summarize", epilog=EXIT_CODES)(summarize)


@with_fields()
def summarize(  # noqa: PLR0913  # one for each option
    paths: Paths,
    *,
    fields: dict[str, object],
    combine: Annotated[
        bool, typer.Option("--combine", help="Make one summary of all, at most 1,000 documents.")
    ] = False,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            metavar="DIR|-",
            help="Write a file for each document here, a folder or s3://bucket/prefix; - prints.",
        ),
    ] = _PRINT,
    kind: FormatOption = Format.MD,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Show each document's progress even when standard error is not a terminal."
        ),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Start a new run instead of resuming an earlier one.")
    ] = False,
    follow_links: FollowLinksOption = False,
    concurrency: ConcurrencyOption = DEFAULT_CONCURRENCY,
    api_url: ApiUrl = None,
) -> None:
    """Summarize documents of any length. The same files with the same options resume an earlier run."""
    locations.check_paths(paths)
    folder = None if output == _PRINT else output
    if folder is not None:
        locations.check_output(paths, folder)
        locations.check_places(paths, folder, kind, combine=combine, follow_links=follow_links)
    skipped = Skipped()
    search = partial(find, paths, left_out=folder, follow_links=follow_links)
    survey = Survey()
    for source in search(skipped=skipped):
        survey.add(source)
    total = survey.num_documents
    if not total:
        raise typer.BadParameter(sources.NOTHING, param_hint="PATH")
    report_skipped(skipped)
    with client_of(api_url) as client, stopping() as stop:
        shown = progress(notes, total=total, live=watch)
        model = client.run(calls.served_model())
        num_sampled = total if combine else min(total, concurrency)
        asked = {**fields, "combine": True} if combine else fields
        opening = Opening(Trees(), asked, survey, num_sampled, holds=not combine)
        run = DocumentRun(Trees(), fields, model=model, observer=shown, again=again, opening=opening)
        group = Group(client, run, concurrency=concurrency, stop=stop)
        group.report_duration(opening)
        if combine:
            tally = _combined(group, list(search()), folder, kind, shown)
        else:
            tally = _each(group, survey.ordered(search()), _output(folder, kind, shown), shown)
    conclude(run, tally)


@dataclass(slots=True)
class Tally:
    """Counts of a run's documents.

    Attributes:
        num_completed: without a failure or another problem.
        num_warned: with warnings about their text.
        num_documents: in all, attached ones included.
    """

    num_completed: int = 0
    num_warned: int = 0
    num_documents: int = 0


@dataclass(frozen=True)
class Group:
    """A run with the client that performs it.

    Attributes:
        concurrency: documents to process at once.
        stop: once set, ends every wait.
    """

    client: Client
    run: DocumentRun
    concurrency: int
    stop: Event

    def each(
        self, flow_of: Callable[[SourceFile], Flow[T]], found: Iterable[SourceFile]
    ) -> Iterator[tuple[int, T]]:
        """Perform a flow for each document in threads; yield its place and result as each ends."""
        return self.client.run_each(flow_of, found, concurrency=self.concurrency, stop=self.stop)

    def each_placed(
        self, found: Iterable[tuple[int, SourceFile]]
    ) -> Iterator[tuple[int, list[DocumentOutcome]]]:
        """Process documents in this order; yield each one's own place and outcomes as they end."""

        def process(placed: tuple[int, SourceFile]) -> Flow[tuple[int, list[DocumentOutcome]]]:
            place, source = placed
            return place, (yield from self.run.process(source))

        for _, ended in self.client.run_each(process, found, concurrency=self.concurrency, stop=self.stop):
            yield ended

    def report_duration(self, opening: Opening) -> None:
        """Print how long the run takes, once that is known; it goes on meanwhile."""

        def report() -> None:
            with suppress(LongbatchError):  # the run meets the same error, or has ended
                seconds = self.perform(opening.estimate())
                if seconds is not None:
                    number = opening.survey.num_documents
                    of_all = "1 document takes" if number == 1 else f"{number:,} documents take"
                    notes.print(f"{of_all} {about(seconds)}")

        Thread(target=report, name="estimate", daemon=True).start()

    def perform(self, flow: Flow[T]) -> T:
        """Perform a flow."""
        return self.client.run(flow, stop=self.stop)

    def fetching(self, outcome: DocumentOutcome) -> Callable[[], DocumentResult]:
        """Return what fetches the result of an ended document."""
        return lambda: self.perform(outcome.fetch())


@contextmanager
def stopping() -> Iterator[Event]:
    """Yield an event, set when the block ends. Ctrl-C prints how to resume and exits."""
    stop = Event()
    try:
        yield stop
    except KeyboardInterrupt:
        notes.print("interrupted: the server continues; run the same command to resume")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        stop.set()


def report_skipped(skipped: Skipped) -> None:
    """Print what the folders hold that is not read, if there is anything."""
    others = {suffix: number for suffix, number in sorted(skipped.kinds.items()) if number}
    if others:
        kinds = ", ".join(f"{number:,} {escape(suffix)}" for suffix, number in others.items())
        notes.print(f"skipped files of other kinds: {kinds}")
    if skipped.links:
        named = _first_of(skipped.links)
        notes.print(f"skipped links that lead out of their folder: {named} (--follow-links reads them)")
    if skipped.broken:
        notes.print(f"skipped broken links: {_first_of(skipped.broken)}")


def _first_of(names: Sequence[str]) -> str:
    named = escape(", ".join(names[:_MAX_NAMED]))
    return f"{len(names):,}, such as {named}" if len(names) > _MAX_NAMED else named


def conclude(run: DocumentRun, tally: Tally) -> None:
    """Print how many documents failed or have warnings; exit with a code unless all completed.

    Raises:
        LongbatchError: the error that stopped the run.
    """
    if run.fatal_error is not None:
        raise run.fatal_error
    total = tally.num_documents
    if tally.num_warned:
        notes.print(f"{tally.num_warned:,} of {total:,} documents with warnings: see the results")
    if tally.num_completed < total:
        output.print_error(f"{total - tally.num_completed:,} of {total:,} documents did not complete")
        raise typer.Exit(output.EXIT_NOT_COMPLETED)


def _each(
    group: Group, found: Iterator[tuple[int, SourceFile]], output: ResultWriter, shown: ProgressDisplay
) -> Tally:
    """Summarize each document on its own."""
    tally = Tally()
    try:
        with shown:
            for place, ended in group.each_placed(found):
                is_written = output.take(place, [group.fetching(each) for each in ended])
                tally.num_completed += is_written and sum(each.is_completed for each in ended)
                tally.num_warned += sum(bool(each.warnings) for each in ended)
                tally.num_documents += len(ended)
    finally:
        output.close()
    return tally


def _combined(
    group: Group, found: list[SourceFile], folder: str | None, kind: Format, shown: ProgressDisplay
) -> Tally:
    """Make one summary of all documents."""
    with shown:
        sent = dict(group.each(group.run.add, found))
        results = group.perform(
            group.run.combined([(source, sent[place]) for place, source in enumerate(found)])
        )
    if folder is None:
        sys.stdout.write(result_files.combined(results, kind, result_files.as_shown))
    else:
        try:
            locations.writer_of(folder, kind).write_combined(results)
        except OSError as error:
            output.print_error(f"cannot write the summary: {error}")
            return Tally(num_documents=len(results))
    num_warned = sum(bool(each.warnings) for each in results)
    return Tally(sum(each.error is None for each in results), num_warned, len(results))


def _output(folder: str | None, kind: Format, shown: ProgressDisplay) -> ResultWriter:
    return StdoutWriter(kind, shown.aside) if folder is None else locations.writer_of(folder, kind)
