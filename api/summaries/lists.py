"""Lists of summaries, answers or extractions over HTTP: those that a request made, and pages of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from api.http.identifiers import parse_optional, parse_range
from api.http.replies import page
from api.runtime.services import Services
from api.summaries.requests import SummaryListQuery
from jobs import ids
from jobs.database.paging import Page, Range
from jobs.ids import IdKind
from jobs.models import Summary
from jobs.summaries import SummaryFilter


def accepted(path: str, made: Sequence[Mapping[str, Any]], *, replayed: bool) -> JSONResponse:
    """Answer a request that made these; one alone is found under the path."""
    headers = {"Idempotent-Replayed": "true"} if replayed else {}
    if len(made) == 1:
        headers["Location"] = f"{path}/{made[0]['id']}"
    return JSONResponse(page(made, has_more=False), 202, headers)


@dataclass(frozen=True, slots=True)
class MadeList:
    """A list of one kind of rows.

    Attributes:
        kind: of their ids.
        read: reads a page of those that match.
        describe: returns the public shapes of rows.
    """

    kind: IdKind
    read: Callable[[Session, SummaryFilter, Range], Page[Summary]]
    describe: Callable[[Session, Sequence[Summary]], Sequence[Mapping[str, Any]]]

    async def answer(self, services: Services, query: SummaryListQuery, *, tenant_id: UUID) -> JSONResponse:
        """Answer with the page of the tenant's rows that the query selects.

        Raises:
            InvalidRequestError: nothing can have an id that the query names.
        """
        wanted = parse_range(query, self.kind, tenant_id=tenant_id)
        message = "There is no such document."
        document_id = parse_optional(
            query.document or None, ids.parse_document_id, param="document", message=message
        )
        which = SummaryFilter(state=query.state, custom_id=query.custom_id, document_id=document_id)

        def read(session: Session) -> dict[str, Any]:
            found = self.read(session, which, wanted)
            return page(self.describe(session, found.items), has_more=found.has_more)

        return JSONResponse(await services.transact(read))
