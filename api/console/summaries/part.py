"""One part of a summary: what it says beside the text that it is of, or beside the parts that it joins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final
from uuid import UUID

from fastapi import Path, Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.documents.texts import PageText, cut_pages
from api.console.error_pages import page_router
from api.console.page import render
from api.console.reading import owner_of, read_for, tenant_names
from api.console.session import Viewer, ViewerDep
from api.console.summaries.listing import PAGES
from api.http.dependencies import ServicesDep
from api.http.identifiers import SummaryIdDep
from jobs import documents, ids, summaries
from jobs.models import JsonObject, Summary
from jobs.models.document import Document
from jobs.sealing.content import fault_of
from jobs.states.document import DocumentState
from jobs.summaries import parts, queries, tree
from jobs.summaries.parts import SummaryPart

router = page_router()

# A chunk of the size that packs best has some 60,000 characters; longer sources are cut.
_MAX_CHARS: Final = 200_000


@dataclass(frozen=True, slots=True)
class PartPage:
    """A part with what the page shows of it.

    Attributes:
        tenant: its owner's name, for operators.
        children: that it joins; none of a leaf.
        outputs: what these parts say, by number, as far as they have completed and it was asked for.
        faults: why what they say cannot be decrypted, by number.
        body: the stored text of its document; None: not asked for, a join, or the document is deleted.
        page_offsets: the character at which each page of the document starts.
        titles: of the summary's documents, by public id.
    """

    part: SummaryPart
    tenant: str | None
    children: Sequence[SummaryPart]
    outputs: Mapping[int, str]
    faults: Mapping[int, JsonObject]
    body: bytes | None
    page_offsets: Sequence[int]
    titles: Mapping[str, str]


@router.get("/summaries/{summary_id}/parts/{number}")
async def show_part(
    request: Request,
    summary_id: SummaryIdDep,
    number: Annotated[int, Path(ge=0, le=2 * tree.MAX_CHUNKS)],
    services: ServicesDep,
    viewer: ViewerDep,
    show: str = "",
) -> Response:
    """Show the part; with `show=texts` what it says, beside its source."""
    with_texts = show == "texts"
    read = partial(read_part, summary_id=summary_id, number=number, viewer=viewer, with_texts=with_texts)
    found = await read_for(viewer, services, read)
    part = found.part
    source: list[PageText] | None = None
    if found.body is not None and part.start is not None and part.end is not None:
        end = min(part.end, part.start + _MAX_CHARS)
        source = await services.compute(
            len(found.body), cut_pages, found.body, found.page_offsets, start=part.start, end=end
        )
    name, address = ids.summary_id(summary_id), PAGES.address_of(summary_id)
    return render(
        request,
        "summaries/part.html",
        title=f"Part {number} of {name[:16]}…",
        found=found,
        part=part,
        source=source,
        is_cut=part.end is not None and part.end - (part.start or 0) > _MAX_CHARS,
        with_texts=with_texts,
        summary_address=address,
        address=f"{address}/parts/{number}",
        document=part.document,
        job=ids.job_id(part.job_id),
    )


def read_part(
    session: Session, *, summary_id: UUID, number: int, viewer: Viewer, with_texts: bool
) -> PartPage:
    """Read the part, those that it joins, and their texts if they are asked for.

    Raises:
        NotFoundError: the viewer sees no such summary, or it has no such part.
    """
    owner = owner_of(session, viewer, summary_id, of=(Summary.id, Summary.tenant_id))
    summaries.get(session, summary_id, tenant_id=owner)
    part = parts.get_part(session, summary_id, number)
    children = parts.read_tree(session, summary_id, top=part, at_most=0)[1:]
    shown = [part, *children] if with_texts else []
    body, offsets = None, []
    if with_texts and part.document_id is not None:
        found = select(Document).where(Document.id == part.document_id, *documents.visible(owner))
        document = session.scalar(found)
        if document is not None and document.state == DocumentState.READY:
            body, offsets = documents.load_body(session, document.id), document.pages
    outputs = parts.read_outputs(session, shown)
    faults = {number: fault for number, output in outputs.items() if (fault := fault_of(output))}
    return PartPage(
        part=part,
        tenant=tenant_names(session, viewer, [owner]).get(owner),
        children=children,
        outputs={number: output for number, output in outputs.items() if number not in faults},
        faults=faults,
        body=body,
        page_offsets=offsets,
        titles=queries.titles(session, summary_id),
    )
