"""The public shape of a file: OpenAI's object."""

from datetime import datetime
from typing import TypedDict

from jobs import ids
from jobs.models.file import File
from jobs.states.file import FileState


class FileObject(TypedDict):
    """A file as JSON; times in seconds since 1970."""

    id: str
    object: str
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: str
    status_details: None


def file_object(file: File) -> FileObject:
    """Return the file as callers see it; `processed` once it is complete."""
    return FileObject(
        id=ids.file_id(file.id),
        object="file",
        bytes=file.num_bytes,
        created_at=int(file.created_at.timestamp()),
        expires_at=_seconds(file.expires_at),
        filename=file.filename,
        purpose=file.purpose,
        status="processed" if file.state == FileState.COMPLETE else "uploaded",
        status_details=None,
    )


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
