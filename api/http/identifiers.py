"""Ids from callers: in paths, in fields and queries, and as the cursor of a list."""

import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Path
from pydantic import BaseModel, ConfigDict, Field

from jobs import ids
from jobs.database.paging import Range
from jobs.errors import InvalidRequestError, MissingFieldError, NotFoundError
from jobs.ids import IdKind

Parse = Callable[[str], UUID]


def in_path(
    name: str, kind: IdKind, *, examples: list[str] | None = None
) -> Callable[[str], Coroutine[Any, Any, UUID]]:
    """Make a dependency that parses the path parameter `name` as an id.

    It is a coroutine because the framework would run a plain function in a thread. It raises NotFoundError
    for an id that nothing of the kind can have: the same answer as for another tenant's id.
    """
    shape = f"`{kind.prefix}…`"

    async def found(text: Annotated[str, Path(alias=name, description=shape, examples=examples)]) -> UUID:
        try:
            return kind.parse(text)
        except NotFoundError:
            raise NotFoundError(f"There is no such {kind.name}.") from None

    return found


_JOB_IDS = ["job_019c2f3e5a4b7c8d9e0f1a2b3c4d5e6f"]
JobIdDep = Annotated[UUID, Depends(in_path("job_id", ids.JOB, examples=_JOB_IDS))]
FileIdDep = Annotated[UUID, Depends(in_path("file_id", ids.FILE))]
BatchIdDep = Annotated[UUID, Depends(in_path("batch_id", ids.BATCH))]
DocumentIdDep = Annotated[UUID, Depends(in_path("document_id", ids.DOCUMENT))]
AnswersIdDep = Annotated[UUID, Depends(in_path("answers_id", ids.ANSWERS))]
ExtractionIdDep = Annotated[UUID, Depends(in_path("extraction_id", ids.EXTRACTION))]
SummaryIdDep = Annotated[UUID, Depends(in_path("summary_id", ids.SUMMARY))]
EndpointIdDep = Annotated[UUID, Depends(in_path("endpoint_id", ids.ENDPOINT))]
EventIdDep = Annotated[UUID, Depends(in_path("event_id", ids.EVENT))]
ResponseIdDep = Annotated[UUID, Depends(in_path("response_id", ids.RESPONSE))]


async def _engine_name(
    engine: Annotated[str, Path(description="Its configured name.", examples=["a6000-1"])],
) -> str:
    if not engine.isprintable():
        raise NotFoundError("There is no such engine.")
    return engine


async def _tenant_name(
    tenant: Annotated[str, Path(description="`tenant_…`, or its name.", examples=["acme"])],
) -> str:
    return tenant


async def _key_name(
    key: Annotated[str, Path(description="Its public part.", examples=["lb_3f9a1c2b4d5e6f70"])],
) -> str:
    if not re.fullmatch(r"lb_[0-9a-f]{16}", key):
        raise NotFoundError("There is no such key.")
    return key


EngineNameDep = Annotated[str, Depends(_engine_name)]
# An id or a name, which `tenants.find` tells apart.
TenantNameDep = Annotated[str, Depends(_tenant_name)]
KeyNameDep = Annotated[str, Depends(_key_name)]


def parse_field(text: str, parse: Parse, *, param: str, message: str) -> UUID:
    """Parse the id in a field or query parameter.

    Raises:
        InvalidRequestError: nothing can have this id; the same answer as for another tenant's id.
    """
    try:
        return parse(text)
    except NotFoundError:
        raise InvalidRequestError(message, param=param) from None


def parse_optional(text: str | None, parse: Parse, *, param: str, message: str) -> UUID | None:
    """Parse the id in an optional parameter; raises as `parse_field` does.

    Returns:
        None: the parameter is absent.
    """
    return None if text is None else parse_field(text, parse, param=param, message=message)


class PageQuery(BaseModel):
    """Where to start a list, and how much of it to read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: str | None = Field(None, description="Id of the last one received; the list continues after it.")
    limit: int = Field(20, ge=1, le=100)


def parse_range(query: PageQuery, kind: IdKind, *, tenant_id: UUID) -> Range:
    """Return the range of the tenant's list that the query selects, newest first.

    Raises:
        InvalidRequestError: nothing can have the id in `after`.
    """
    message = f"There is no {kind.name} with the id in `after`."
    after = parse_optional(query.after or None, kind.parse, param="after", message=message)
    return Range(tenant_id, after, query.limit)


def parse_documents(listed: Sequence[str]) -> list[UUID]:
    """Parse the document ids of a request.

    Raises:
        InvalidRequestError: the list is empty, names a document twice, or has an id no document can have.
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
            raise InvalidRequestError("This document is listed twice.", param=f"documents.{place}")
        seen.add(each)
    return found
