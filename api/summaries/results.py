"""Results of summaries, read once and written as JSON, Markdown or CSV."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session
from starlette.responses import Response

from jobs import summaries
from jobs.errors import JobNotFinishedError
from jobs.states.summary import TERMINAL
from jobs.summaries import formats, queries
from jobs.summaries.views import SummaryWithChunks

Format = Literal["json", "md", "csv"]
_MEDIA_TYPES: Final = {"md": "text/markdown", "csv": "text/csv"}


@dataclass(frozen=True, slots=True)
class EndedSummary:
    """A summary that has ended.

    Attributes:
        titles: of its documents, for Markdown.
    """

    summary: SummaryWithChunks
    titles: Mapping[str, str]


def read(session: Session, *, summary_id: UUID, tenant_id: UUID, form: Format) -> EndedSummary:
    """Read the summary with all that its result contains.

    Raises:
        NotFoundError: the tenant has no such summary.
        JobNotFinishedError: it has not ended.
    """
    summary = summaries.get(session, summary_id, tenant_id=tenant_id)
    if summary.state not in TERMINAL:
        raise JobNotFinishedError("The summary has not ended yet; poll it, or wait with ?wait=.")
    found = queries.describe_with_chunks(session, summary)
    return EndedSummary(found, queries.titles(session, summary.id) if form == "md" else {})


def response(found: EndedSummary, form: Format, *, link: str = formats.LINK) -> Response:
    """Write the result in this format; Markdown links to its documents as `formats.as_markdown` describes."""
    if form == "json":
        return JSONResponse(formats.result_object(found.summary))
    if form == "csv":
        text = formats.as_csv(found.summary)
    else:
        text = formats.as_markdown(found.summary, found.titles, link=link)
    return Response(text, media_type=_MEDIA_TYPES[form])
