"""Files of what was found in documents, read some at a time while they are sent."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Protocol, TypeVar
from uuid import UUID

from sqlalchemy.orm import Session
from starlette.responses import Response, StreamingResponse

from api.console.reading import read_for
from api.console.session import Viewer
from api.runtime.services import Services
from jobs.models import Summary

Found = TypeVar("Found")
_READ_AT_ONCE: Final = 20


@dataclass(frozen=True, slots=True)
class FileRow(Generic[Found]):
    """What was found in one document.

    Attributes:
        name: its filename, or its id.
        document: its id.
    """

    name: str
    asked: Summary
    document: str
    found: Found

    @property
    def filename(self) -> str | None:
        """Its filename; None: it is deleted, or has none."""
        return None if self.name == self.document else self.name


@dataclass(frozen=True, slots=True)
class FileForm(Generic[Found]):
    """How a file is written.

    Attributes:
        heading: writes what precedes the rows, by what was asked of the documents.
        row: writes a row, by the same.
        between: two rows.
        ending: what follows the rows.
    """

    media_type: str
    heading: Callable[[Sequence[str]], str]
    row: Callable[[FileRow[Found], Sequence[str]], str]
    between: str = ""
    ending: str = ""


def csv_form(
    heading: Callable[[Sequence[str]], str], row: Callable[[FileRow[Found], Sequence[str]], str]
) -> FileForm[Found]:
    """Return the form of a table for spreadsheets."""
    return FileForm("text/csv; charset=utf-8", heading, row)


def json_form(as_object: Callable[[FileRow[Found]], Mapping[str, object]]) -> FileForm[Found]:
    """Return the form of a list of objects."""
    row = partial(_json_row, as_object=as_object)
    return FileForm("application/json", lambda _: "[\n", row, between=",\n", ending="\n]\n")


def jsonl_form(as_object: Callable[[FileRow[Found]], Mapping[str, object]]) -> FileForm[Found]:
    """Return the form of objects, one a line."""
    row = partial(_json_row, as_object=as_object, end="\n")
    return FileForm("application/x-ndjson", lambda _: "", row)


def _json_row(
    row: FileRow[Found],
    _: Sequence[str],
    *,
    as_object: Callable[[FileRow[Found]], Mapping[str, object]],
    end: str = "",
) -> str:
    return json.dumps(as_object(row), ensure_ascii=False) + end


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows of a file: their ids, whose they are, and what was asked of their documents."""

    ids: Sequence[UUID]
    owner: UUID
    columns: Sequence[str]


class ReadFileRows(Protocol[Found]):
    """Reads those of these rows that the owner has, in order."""

    def __call__(
        self, session: Session, /, *, listed: Sequence[UUID], owner: UUID
    ) -> Sequence[FileRow[Found]]:
        """Read them with few queries in all."""


def file_response(
    services: Services,
    viewer: Viewer,
    rows: FileRows,
    form: FileForm[Found],
    *,
    filename: str,
    read: ReadFileRows[Found],
) -> Response:
    """Send a file, read some rows at a time, without those deleted meanwhile."""
    headers = {"Content-Disposition": f'attachment; filename="{filename}"'}
    written = _written(services, viewer, rows, form, read)
    return StreamingResponse(written, media_type=form.media_type, headers=headers)


async def _written(
    services: Services, viewer: Viewer, rows: FileRows, form: FileForm[Found], read: ReadFileRows[Found]
) -> AsyncIterator[str]:
    yield form.heading(rows.columns)
    num_written = 0
    for place in range(0, len(rows.ids), _READ_AT_ONCE):
        some = partial(read, listed=rows.ids[place : place + _READ_AT_ONCE], owner=rows.owner)
        for each in await read_for(viewer, services, some):
            yield f"{form.between if num_written else ''}{form.row(each, rows.columns)}"
            num_written += 1
    yield form.ending
