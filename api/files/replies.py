"""Replies about files, modelled for the API documentation."""

from typing import Any, Literal

from pydantic import with_config

from api.http.fields import example
from api.http.replies import DeletionReply, ListReply, gone_example, page_example
from jobs.files.views import FileObject

_FILE_ID = "file-019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"
_FILE: dict[str, Any] = {
    "id": _FILE_ID,
    "object": "file",
    "bytes": 5231,
    "created_at": 1769860800,
    "expires_at": 1772452800,
    "filename": "requests.jsonl",
    "purpose": "batch",
    "status": "processed",
    "status_details": None,
}


@with_config(example(**_FILE))
class FileReply(FileObject):
    """A file. Times are seconds since 1970."""


class FileListReply(ListReply[FileReply]):
    """A page of files."""

    model_config = page_example(_FILE)


class FileDeletedReply(DeletionReply[Literal["file"]]):
    """A file that was deleted."""

    model_config = gone_example(_FILE)
