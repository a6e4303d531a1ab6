"""The states of a file."""

from enum import StrEnum


class FileState(StrEnum):
    """Where a file is in its life."""

    UPLOADING = "uploading"  # hidden until complete
    GROWING = "growing"  # readable while a batch appends to it
    COMPLETE = "complete"
    DELETED = "deleted"  # hidden; its bytes are removed later
