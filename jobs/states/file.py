"""The states of a file."""

from enum import StrEnum


class FileState(StrEnum):
    """Where a file is in its life."""

    UPLOADING = "uploading"  # nobody sees it yet
    GROWING = "growing"  # can be read while more is written
    COMPLETE = "complete"
    DELETED = "deleted"  # nobody sees it any more; its bytes go later
