"""The public shape of a file: OpenAI's object."""

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from jobs import ids
from jobs.models.file import File
from jobs.states.file import FileState
from jobs.validation import choice
from jobs.views import optional_seconds


class FileObject(TypedDict):
    """A file as JSON; times in seconds since 1970."""

    id: str
    object: Literal["file"]
    bytes: Annotated[int, Field(description="Bytes that can be read so far.")]
    created_at: int
    expires_at: Annotated[
        int | None,
        Field(description="Null while the file is being written, and if it is deleted with its job."),
    ]
    filename: str
    purpose: Annotated[str, choice(("batch", "batch_output", "engine_input", "engine_output"))]
    status: Annotated[
        Literal["uploaded", "processed"], Field(description="`processed` once the file is complete.")
    ]
    status_details: None


def file_object(file: File) -> FileObject:
    """Return the file as callers see it; `processed` once it is complete."""
    return FileObject(
        id=ids.file_id(file.id),
        object="file",
        bytes=file.num_bytes,
        created_at=int(file.created_at.timestamp()),
        expires_at=optional_seconds(file.expires_at),
        filename=file.filename,
        purpose=file.purpose,
        status="processed" if file.state == FileState.COMPLETE else "uploaded",
        status_details=None,
    )
