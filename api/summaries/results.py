"""Results of summaries, read once and written as JSON, Markdown or CSV."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal
from uuid import UUID

from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.runtime.services import Services
from api.summaries.quotes import Run, find_quotes
from jobs import ids, summaries
from jobs.errors import JobNotFinishedError
from jobs.states.summary import TERMINAL
from jobs.summaries import formats, queries
from jobs.summaries.views import QuoteReply, SummaryWithChunks

Format = Literal["json", "md", "csv"]
_MEDIA_TYPES: Final = {"md": "text/markdown", "csv": "text/csv"}


@dataclass(frozen=True, slots=True)
class EndedSummary:
    """A summary that has ended.

    Attributes:
        titles: of its documents, for Markdown.
        quotes: the passages that its text quotes; none in CSV.
    """

    summary: SummaryWithChunks
    titles: Mapping[str, str]
    quotes: Sequence[QuoteReply] = ()


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


async def with_quotes(services: Services, run: Run, found: EndedSummary, *, form: Format) -> EndedSummary:
    """Look up what the summary quotes; CSV has no place for it."""
    if form == "csv":
        return found
    summary_id = ids.parse_summary_id(found.summary["id"])
    text = found.summary["summary"]
    return replace(found, quotes=await find_quotes(services, run, summary_id=summary_id, summary=text))


def response(found: EndedSummary, form: Format, *, link: str = formats.LINK) -> Response:
    """Write the result in this format; Markdown links to its documents as `formats.as_markdown` describes."""
    if form == "json":
        return JSONResponse(formats.result_object(found.summary, found.quotes))
    if form == "csv":
        text = formats.as_csv(found.summary)
    else:
        text = formats.as_markdown(found.summary, found.titles, quotes=found.quotes, link=link)
    return Response(text, media_type=_MEDIA_TYPES[form])
