"""Where documents lie and results go: files and folders, or places in object storage."""

import posixpath
from collections.abc import Sequence
from pathlib import Path

import typer

from longbatch.cli.outputs import FolderWriter, LocalFolder
from longbatch.cli.result_files import Format
from longbatch.documents import buckets, sources
from longbatch.documents.buckets import BucketFolder, is_bucket
from longbatch.documents.locations import find


def writer_of(output: str, kind: Format) -> FolderWriter:
    """Make what writes a file for each result below this folder.

    Raises:
        BucketError: object storage is not set up.
    """
    if is_bucket(output):
        return FolderWriter(BucketFolder(buckets.parse(output)), kind)
    return FolderWriter(LocalFolder(sources.absolute(output)), kind)


def check_paths(paths: Sequence[str]) -> None:
    """Check that all of the paths are of one kind, and that one of them exists.

    If only some files are missing, those are reported later as unreadable files.

    Raises:
        typer.BadParameter: the paths mix both kinds, or none exists.
    """
    in_buckets = [is_bucket(path) for path in paths]
    if any(in_buckets):
        if not all(in_buckets):
            message = "either all documents lie in object storage, or none: run the command twice"
            raise typer.BadParameter(message, param_hint="PATH")
    elif not any(sources.is_there(path) for path in paths):
        name = sources.printable(paths[0])
        raise typer.BadParameter(f"no such file or folder: {name}", param_hint="PATH")


def check_output(paths: Sequence[str], output: str) -> None:
    """Check that no result becomes an input.

    Raises:
        typer.BadParameter: the folder is one of the paths.
    """
    if is_bucket(output):
        is_input = any(buckets.parse(path) == buckets.parse(output) for path in paths if is_bucket(path))
    else:
        folder = sources.absolute(output)
        is_input = any(
            sources.is_same(sources.absolute(path), folder) for path in paths if not is_bucket(path)
        )
    if is_input:
        raise typer.BadParameter("must not be an input: summaries would be summarized", param_hint="--output")


def check_places(
    paths: Sequence[str], output: str, kind: Format, *, combine: bool, follow_links: bool
) -> None:
    """Check that no document is overwritten.

    Nor may one be deleted as the failure file of an earlier run.

    Raises:
        typer.BadParameter: a document would be.
    """
    if is_bucket(output) != is_bucket(paths[0]):
        return
    named, folder = {_place(path) for path in paths}, _place(output)
    if not any(each.is_relative_to(folder) for each in named):
        return  # documents that come from folders are never below the output folder
    written = writer_of(output, kind)
    found = find(paths, left_out=output, follow_links=follow_links)
    places = [written.combined_place] if combine else (each for one in found for each in written.places(one))
    for place in places:
        at = _place(posixpath.join(output, place))
        if at in named:
            message = f"{posixpath.join(output, place)} is a document and would be overwritten"
            raise typer.BadParameter(message, param_hint="--output")


def _place(path: str) -> Path:
    """Return the path without links; in object storage, of the key below its bucket."""
    if is_bucket(path):
        address = buckets.parse(path)
        return Path("/", address.bucket, address.key)
    return sources.absolute(path).resolve()
