"""The file of a table about many documents, here or in object storage; it appears whole, at the end."""

import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TextIO

import typer

from longbatch.cli import output as printing
from longbatch.documents import buckets, locations, sources
from longbatch.documents.buckets import BucketFile, is_bucket
from longbatch.documents.sources import Skipped, SourceFile, Survey
from longbatch.errors import LongbatchError
from longbatch.whole_files import shared_mode, writing_whole

PRINT: Final = "-"
# Of tables of answers and extractions, in CSV, JSON and JSON lines.
_SUFFIXES: Final = (".csv", ".json", ".jsonl")
_BEGINNINGS: Final = (b"document,", b'[\n{\n  "document"', b'{"document":')


def survey(paths: Sequence[str], output: str, *, skipped: Skipped, follow_links: bool) -> Survey:
    """Count the documents of a table, and check that it would overwrite none of them.

    Args:
        paths: that `locations.check_paths` has passed; a table of an earlier run among them is no document.
        output: where the table goes; `-` prints.
        skipped: takes down what folders hold besides.
        follow_links: as `locations.find` takes it.

    Raises:
        typer.BadParameter: there is no document, or the output is a folder or a document.
        BucketError: the object storage does not answer or refuses, or is not set up.
    """
    _check_file(output)
    found = Survey()
    for source in locations.find(paths, skipped=skipped, follow_links=follow_links):
        if not is_output(source, output):
            found.add(source)
        elif not _is_earlier(source):
            message = f"{source.shown} is a document and would be overwritten"
            raise typer.BadParameter(message, param_hint="--output")
    if not found.num_documents:
        raise typer.BadParameter(sources.NOTHING, param_hint="PATH")
    return found


@contextmanager
def opened(output: str) -> Iterator[TextIO]:
    """Open the output; a file appears whole after the block, unless the block fails.

    What is no text goes into its `buffer`.

    Raises:
        typer.Exit: it cannot be written.
    """
    if output == PRINT:
        yield sys.stdout
        return
    try:
        with _stored(output) if is_bucket(output) else _written(output) as file:
            yield file
    except OSError as error:
        printing.print_error(f"cannot write {output}: {error}")
        raise typer.Exit(printing.EXIT_NOT_COMPLETED) from error


def _check_file(output: str) -> None:
    if is_bucket(output):
        address = buckets.parse(output)
        buckets.connect(address.bucket)
        is_folder = not address.key or output.endswith("/")
    else:
        is_folder = output != PRINT and sources.absolute(output).is_dir()
    if is_folder:
        raise typer.BadParameter(f"{output} is a folder; name a file", param_hint="--output")


def is_output(source: SourceFile, output: str) -> bool:
    """Return True if the document lies where the output goes."""
    if output == PRINT:
        return False
    if isinstance(source, BucketFile) or is_bucket(output):
        return is_bucket(output) and source.shown == str(buckets.parse(output))
    return sources.is_same(source.path, sources.absolute(output))


def _is_earlier(source: SourceFile) -> bool:
    """Return True if an earlier run wrote this table: it is no document, and is replaced."""
    if not source.shown.endswith(_SUFFIXES):
        return False
    try:
        with source.at_hand() as path, path.open("rb") as file:
            return file.read(len(max(_BEGINNINGS, key=len))).startswith(_BEGINNINGS)
    except (OSError, LongbatchError):
        return False


@contextmanager
def _written(output: str) -> Iterator[TextIO]:
    path = sources.absolute(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing_whole(path, mode=shared_mode()) as file:
        yield file


@contextmanager
def _stored(output: str) -> Iterator[TextIO]:
    with tempfile.TemporaryFile(prefix="longbatch-") as kept:
        file = io.TextIOWrapper(kept, encoding="utf-8", newline="")
        yield file
        file.flush()
        kept.seek(0)
        buckets.store(buckets.parse(output), kept)
