"""The result of a summary as JSON, CSV or Markdown."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

from pydantic import Field
from typing_extensions import TypedDict

from jobs.states.summary import TERMINAL, SummaryState
from jobs.summaries.views import (
    ChunkReply,
    GapReply,
    QuoteReply,
    StoredTemplates,
    StoredWarnings,
    SummaryUsageReply,
    SummaryWithChunks,
)
from jobs.validation import choice
from jobs.views import StoredError
from longbatch.markdown import defused
from longbatch.tables.cells import inert
from longbatch.tables.findings import shown_failure, shown_warnings

# A stretch of a document's text, in the API.
LINK: Final = "/v1/documents/{document_id}/text?start={start}&end={end}"
_CSV_COLUMNS: Final = (
    "document_id",
    "index",
    "start",
    "end",
    "first_page",
    "last_page",
    "state",
    "summary",
    "warnings",
)


class SummaryResult(TypedDict):
    """A summary's text and its provenance."""

    id: str
    state: Annotated[str, choice(state for state in SummaryState if state in TERMINAL)]
    custom_id: str | None
    documents: Sequence[str]
    summary: str | None
    chunks: Sequence[ChunkReply]
    gaps: Sequence[GapReply]
    warnings: StoredWarnings
    quotes: Annotated[
        Sequence[QuoteReply],
        Field(
            description="Passages of at least 8 letters that the summary has in double quotation marks or"
            " guillemets, the first 100, looked up now."
        ),
    ]
    usage: SummaryUsageReply
    templates: StoredTemplates
    model: str
    error: StoredError | None


def result_object(found: SummaryWithChunks, quotes: Sequence[QuoteReply]) -> SummaryResult:
    """Build the result object of a summary."""
    return SummaryResult(
        id=found["id"],
        state=found["state"],
        custom_id=found["custom_id"],
        documents=found["documents"],
        summary=found["summary"],
        chunks=found["chunks"],
        gaps=found["gaps"],
        warnings=found["warnings"],
        quotes=quotes,
        usage=found["usage"],
        templates=found["templates"],
        model=found["model"],
        error=found["error"],
    )


def as_csv(found: SummaryWithChunks) -> str:
    """Write the summary (no index) and its chunks as CSV rows; quote formulas."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\r\n")
    rows.writerow(_CSV_COLUMNS)
    document = found["documents"][0] if len(found["documents"]) == 1 else ""
    warnings = inert(shown_warnings(found["warnings"]))
    rows.writerow([document, "", "", "", "", "", found["state"], inert(found["summary"] or ""), warnings])
    for chunk in found["chunks"]:
        first, last = chunk["pages"] or ("", "")
        rows.writerow(
            [
                chunk["document_id"],
                chunk["index"],
                chunk["start"],
                chunk["end"],
                first,
                last,
                chunk["state"],
                inert(_said(chunk)),
                "",
            ]
        )
    return out.getvalue()


def as_markdown(
    found: SummaryWithChunks,
    titles: Mapping[str, str],
    *,
    quotes: Sequence[QuoteReply] = (),
    link: str = LINK,
) -> str:
    """Write the summary as Markdown; each chunk links to its text and pages.

    Args:
        found: the summary.
        titles: of its documents, by public id; a document without one appears under its id.
        quotes: the passages that it quotes.
        link: to a stretch of a document's text, with the places `document_id`, `start` and `end`.
    """
    parts = [f"# {_names(found['documents'], titles)}", defused(found["summary"] or "") or _status(found)]
    if quotes:
        parts += ["## Quoted", "\n".join(_quoted(each, titles, link) for each in quotes)]
    if found["warnings"]:
        warnings = [f"- {_warned(each, titles)}" for each in found["warnings"]]
        parts += ["## Warnings", "\n".join(warnings)]
    if found["gaps"]:
        gaps = [f"- {_place(gap, titles)}: {_code(gap['error'])}" for gap in found["gaps"]]
        parts += ["## Missing", "\n".join(gaps)]
    if len(found["chunks"]) > 1:
        parts.append("## Sources")
        for chunk in found["chunks"]:
            parts += [
                f"### [{_place(chunk, titles)}]({link.format(**chunk)})",
                defused(chunk["summary"] or "") or _status(chunk),
            ]
    elif found["chunks"]:
        (chunk,) = found["chunks"]
        parts.append(f"Source: [{_place(chunk, titles)}]({link.format(**chunk)})")
    return "\n\n".join(parts) + "\n"


def _names(documents: Iterable[str], titles: Mapping[str, str]) -> str:
    return ", ".join(_escaped(titles.get(each) or each) for each in documents)


def _quoted(each: QuoteReply, titles: Mapping[str, str], link: str) -> str:
    said = f"- \u201c{defused(' '.join(each['quote'].split()))}\u201d"
    if each["quote_in_text"]:
        return f"{said}: [{_place(each, titles)}]({link.format(**each)})"
    return f"{said}: {'not in the text' if each['quote_in_text'] is False else 'not looked up'}"


def _place(part: ChunkReply | GapReply | QuoteReply, titles: Mapping[str, str]) -> str:
    document_id = part["document_id"] or ""
    name = _escaped(titles.get(document_id) or document_id)
    if part["pages"]:
        first, last = part["pages"]
        return f"{name}, page {first}" if first == last else f"{name}, pages {first}–{last}"  # noqa: RUF001  # a range
    if part["start"] is None:
        return name
    return f"{name}, characters {part['start']}–{part['end']}"  # noqa: RUF001  # a range


def _warned(warning: Mapping[str, object], titles: Mapping[str, str]) -> str:
    document_id = str(warning["document_id"])
    return f"{_escaped(titles.get(document_id) or document_id)}: {_escaped(str(warning['message']))}"


def _said(chunk: ChunkReply) -> str:
    """Return what a chunk says, or why that cannot be read; a chunk that failed says nothing."""
    if chunk["state"] == SummaryState.COMPLETED and chunk["error"]:
        return shown_failure(chunk["error"])
    return chunk["summary"] or ""


def _status(found: SummaryWithChunks | ChunkReply) -> str:
    return f"*{found['state']}: {_code(found['error'])}*" if found["error"] else f"*{found['state']}*"


def _code(error: Mapping[str, object] | None) -> str:
    return str((error or {}).get("code", "not summarized"))


def _escaped(title: str) -> str:
    """Escape a title so that it cannot end the line or the link around it."""
    plain = " ".join(title.split())
    return "".join(f"\\{char}" if char in "\\[]()<>*_`#|" else char for char in plain)
