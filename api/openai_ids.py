"""Ids of files and batches in paths and bodies."""

from collections.abc import Callable
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Path

from jobs import ids
from jobs.errors import InvalidRequestError, NotFoundError


async def parse_file_id(file_id: Annotated[str, Path(description="`file-…`")]) -> UUID:
    """The file id of the path.

    Raises:
        NotFoundError: no file can have it; the same answer as for a file that is somebody else's.
    """
    try:
        return ids.parse_file_id(file_id)
    except NotFoundError:
        raise NotFoundError("there is no such file") from None


async def parse_batch_id(batch_id: Annotated[str, Path(description="`batch_…`")]) -> UUID:
    """The batch id of the path; raises as `parse_file_id` does."""
    try:
        return ids.parse_batch_id(batch_id)
    except NotFoundError:
        raise NotFoundError("there is no such batch") from None


def parse_field(text: str, parse: Callable[[str], UUID], *, param: str, message: str) -> UUID:
    """The id that a field or query parameter holds.

    Raises:
        InvalidRequestError: nothing can have it; the same answer as for what is somebody else's.
    """
    try:
        return parse(text)
    except NotFoundError:
        raise InvalidRequestError(message, param=param) from None


FileIdDep = Annotated[UUID, Depends(parse_file_id)]
BatchIdDep = Annotated[UUID, Depends(parse_batch_id)]
