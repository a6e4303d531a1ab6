"""One extraction: how far it is, then its fields; their values when asked for; live until it ends."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.error_pages import page_router
from api.console.extractions.fields import ShownExtraction, shown_extraction
from api.console.extractions.listing import PAGES
from api.console.live import LiveDep
from api.console.page import render
from api.console.reading import owner_of, read_for, tenant_names
from api.console.session import Viewer, ViewerDep
from api.console.subjects.documents import find_document, name_of
from api.console.subjects.live import follow_one
from api.http.dependencies import ServicesDep
from api.http.identifiers import ExtractionIdDep
from jobs import extractions, ids
from jobs.extractions import queries
from jobs.models import Summary
from jobs.models.document import Document
from jobs.questions import trees
from jobs.states import TERMINAL as ENDED_JOB
from jobs.states.summary import TERMINAL
from jobs.summaries import parts
from jobs.summaries.parts import SummaryPart

router = page_router()

SHOW_VALUES: Final = "values"
_SHOW_SCHEMA: Final = "schema"
MAX_PARTS: Final = 150
# Of a value or a quote; the downloads have all.
_MAX_CHARS: Final = 2000


@dataclass(frozen=True, slots=True)
class ExtractionPage:
    """An extraction with what the page shows of it.

    Attributes:
        tenant: its owner's name, for operators.
        document: None: it is deleted.
        parts: of the document, and one more than the page shows if there are more; none until planned.
        num_together: extractions that the same request made, this one included.
    """

    asked: Summary
    tenant: str | None
    document: Document | None
    extraction: ShownExtraction
    parts: Sequence[SummaryPart]
    num_together: int

    @property
    def name(self) -> str:
        """What the page calls the document."""
        return name_of(self.document, self.extraction.shown["document"])


@router.get("/extractions/{extraction_id}")
async def show_extraction(
    request: Request, extraction_id: ExtractionIdDep, services: ServicesDep, viewer: ViewerDep, show: str = ""
) -> Response:
    """Show how far it is and which fields are found; with `show=values` their values too."""
    read = partial(read_extraction, extraction_id=extraction_id, viewer=viewer)
    found = await read_for(viewer, services, read)
    name, address = ids.extraction_id(extraction_id), PAGES.address_of(extraction_id)
    is_open = found.asked.state not in TERMINAL
    shown = found.extraction.shown
    schema = json.dumps(shown["schema"], indent=2, ensure_ascii=False)
    return render(
        request,
        "extractions/one.html",
        title=f"Extraction {name[:16]}…",
        id=name,
        found=found,
        asked=found.asked,
        shown=shown,
        fields=found.extraction.fields.values(),
        with_values=show == SHOW_VALUES,
        schema=schema if show == _SHOW_SCHEMA else None,
        max_parts=MAX_PARTS,
        max_chars=_MAX_CHARS,
        address=address,
        is_own=found.asked.tenant_id == viewer.caller.tenant_id,
        live_address=f"{address}/live{_shown(show)}" if is_open else None,
    )


@router.get("/extractions/{extraction_id}/live")
async def follow_extraction(
    request: Request,
    extraction_id: ExtractionIdDep,
    services: ServicesDep,
    viewer: ViewerDep,
    watched: LiveDep,
    show: str = "",
) -> Response:
    """Stream the counts of the extraction and the states of its parts; reload the page at each state."""
    with services.event_streams.opening(viewer.caller, session=viewer.token) as stream:
        read = partial(read_extraction, extraction_id=extraction_id, viewer=viewer)
        found = await read_for(viewer, services, read)
        numbers = {
            each.job_id: each.number for each in found.parts[:MAX_PARTS] if each.state not in ENDED_JOB
        }
        address = f"{PAGES.address_of(extraction_id)}{_shown(show)}"
        return follow_one(
            request, stream, watched, found.asked, numbers, address=address, element="#extraction"
        )


def read_extraction(session: Session, *, extraction_id: UUID, viewer: Viewer) -> ExtractionPage:
    """Read the extraction, the parts that were read for it, and their document.

    Raises:
        NotFoundError: the viewer sees no such extraction.
    """
    owner = owner_of(session, viewer, extraction_id, of=(Summary.id, Summary.tenant_id))
    asked = extractions.get(session, extraction_id, tenant_id=owner)
    return ExtractionPage(
        asked=asked,
        tenant=tenant_names(session, viewer, [owner]).get(owner),
        document=find_document(session, asked),
        extraction=shown_extraction(queries.describe_whole(session, asked)),
        parts=parts.read_leaves(session, extraction_id, limit=MAX_PARTS + 1),
        num_together=len(trees.asked_together(session, asked)),
    )


def _shown(show: str) -> str:
    """Return what the page's address says of what to show."""
    return f"?show={show}" if show in (SHOW_VALUES, _SHOW_SCHEMA) else ""
