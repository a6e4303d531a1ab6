"""Ids that callers give: in paths, in fields and queries, and where a list goes on."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, Protocol
from uuid import UUID

from fastapi import Depends, Path

from jobs import ids
from jobs.database.paging import Range
from jobs.errors import InvalidRequestError, MissingFieldError, NotFoundError

Parse = Callable[[str], UUID]


def in_path(
    name: str, parse: Parse, *, kind: str, shape: str, examples: list[str] | None = None
) -> Callable[[str], Coroutine[Any, Any, UUID]]:
    """A dependency: the id that stands under this name in the path.

    It is a coroutine, as the framework would send a plain function through a thread; it raises NotFoundError
    where nothing of the kind can have the id, the same answer as for one that is somebody else's.
    """

    async def found(text: Annotated[str, Path(alias=name, description=shape, examples=examples)]) -> UUID:
        try:
            return parse(text)
        except NotFoundError:
            raise NotFoundError(f"there is no such {kind}") from None

    return found


JobIdDep = Annotated[
    UUID,
    Depends(
        in_path(
            "job_id",
            ids.parse_job_id,
            kind="job",
            shape="`job_…`",
            examples=["job_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"],
        )
    ),
]
FileIdDep = Annotated[UUID, Depends(in_path("file_id", ids.parse_file_id, kind="file", shape="`file-…`"))]
BatchIdDep = Annotated[
    UUID, Depends(in_path("batch_id", ids.parse_batch_id, kind="batch", shape="`batch_…`"))
]
DocumentIdDep = Annotated[
    UUID, Depends(in_path("document_id", ids.parse_document_id, kind="document", shape="`doc_…`"))
]
SummaryIdDep = Annotated[
    UUID, Depends(in_path("summary_id", ids.parse_summary_id, kind="summary", shape="`sum_…`"))
]
EndpointIdDep = Annotated[
    UUID, Depends(in_path("endpoint_id", ids.parse_endpoint_id, kind="webhook endpoint", shape="`whep_…`"))
]
EventIdDep = Annotated[UUID, Depends(in_path("event_id", ids.parse_event_id, kind="event", shape="`evt_…`"))]


def parse_field(text: str, parse: Parse, *, param: str, message: str) -> UUID:
    """The id that a field or query parameter holds.

    Raises:
        InvalidRequestError: nothing can have it; the same answer as for what is somebody else's.
    """
    try:
        return parse(text)
    except NotFoundError:
        raise InvalidRequestError(message, param=param) from None


def parse_optional(text: str | None, parse: Parse, *, param: str, message: str) -> UUID | None:
    """The id that a parameter holds, if it is given; raises as `parse_field` does."""
    return None if text is None else parse_field(text, parse, param=param, message=message)


class ListQuery(Protocol):
    """What every query of a list has."""

    @property
    def after(self) -> str | None:
        """The id of the last row that was seen; empty or None: from the beginning."""

    @property
    def limit(self) -> int:
        """Rows at most."""


def parse_range(query: ListQuery, parse: Parse, *, tenant_id: UUID, kind: str) -> Range:
    """The part of the tenant's list that the query asks for, newest first.

    Raises:
        InvalidRequestError: nothing can have the id to go on behind.
    """
    message = f"after names no {kind} of yours"
    after = parse_optional(query.after or None, parse, param="after", message=message)
    return Range(tenant_id, after, query.limit)


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
