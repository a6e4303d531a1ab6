"""Ids of summaries and documents in paths and bodies."""

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Path

from api.openai_ids import parse_field
from jobs import ids
from jobs.errors import InvalidRequestError, MissingFieldError, NotFoundError


async def parse_summary_id(summary_id: Annotated[str, Path(description="`sum_…`")]) -> UUID:
    """The summary id of the path.

    Raises:
        NotFoundError: no summary can have it; the same answer as for one that is somebody else's.
    """
    try:
        return ids.parse_summary_id(summary_id)
    except NotFoundError:
        raise NotFoundError("there is no such summary") from None


def parse_documents(listed: Sequence[str]) -> list[UUID]:
    """The documents that a request names.

    Raises:
        InvalidRequestError: there are none, one twice, or one that no document can be.
    """
    if not listed:
        raise MissingFieldError("The field 'documents' is required.", param="documents")
    found = [
        parse_field(
            each, ids.parse_document_id, param=f"documents.{place}", message="There is no such document."
        )
        for place, each in enumerate(listed)
    ]
    seen: set[UUID] = set()
    for place, each in enumerate(found):
        if each in seen:
            raise InvalidRequestError("A document is named twice.", param=f"documents.{place}")
        seen.add(each)
    return found


SummaryIdDep = Annotated[UUID, Depends(parse_summary_id)]
