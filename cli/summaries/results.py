"""The result of each document, as a value and as JSON, Markdown and CSV."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from cli.summaries.options import Format
from cli.summaries.sources import SourceFile
from jobs.markdown import defused
from jobs.tables.cells import csv_line

# Returns the link from a result's file to its source.
Link = Callable[[SourceFile], str]

_QUOTE_FIELDS: Final = ("quote", "quote_in_text", "pages", "start", "end")
_COLUMNS: Final = (
    "path",
    "summary",
    "chunks",
    "gaps",
    "prompt_tokens",
    "completion_tokens",
    "error_code",
    "error_message",
    "cached_tokens",
)


@dataclass(frozen=True, slots=True)
class DocumentResult:
    """The outcome of one document.

    Attributes:
        source: the file.
        summary: the text; None on failure, and `error` says why.
        chunks: each chunk of the text with `pages`, `start`, `end` and its own `summary`, None if it could
            not be summarized.
        gaps: the chunks that the summary leaves out, with `pages`, `start`, `end` and `error`.
        quotes: the passages that the summary quotes, with `quote_in_text`, `pages`, `start` and `end`; in a
            combined one those of other documents are left out.
        answers: of a document that was asked questions, in their order, as the server returns them.
        extraction: what was extracted, as the server returns it; None if nothing was.
        usage: tokens; None if no job ran.
        error: `code` and `message`; None if the document completed.
    """

    source: SourceFile
    summary: str | None = None
    chunks: tuple[Mapping[str, Any], ...] = ()
    gaps: tuple[Mapping[str, Any], ...] = ()
    quotes: tuple[Mapping[str, Any], ...] = ()
    answers: tuple[Mapping[str, Any], ...] = ()
    extraction: Mapping[str, Any] | None = None
    usage: Mapping[str, int] | None = None
    error: Mapping[str, str] | None = None


def as_shown(source: SourceFile) -> str:
    """Return the path of a source from the directory of the command."""
    return source.shown


def failed(source: SourceFile, code: str, message: str) -> DocumentResult:
    """Build the result of a document that failed."""
    return DocumentResult(source, error={"code": code, "message": message})


def of_summary(
    source: SourceFile, summary: Mapping[str, Any], *, document_id: str | None = None
) -> DocumentResult:
    """Build the result of an ended summary.

    Args:
        source: the file.
        summary: as the server returns it.
        document_id: take only this document's part of a combined summary; None takes all.
    """
    chunks = [each for each in summary.get("chunks") or [] if document_id in (None, each["document_id"])]
    gaps = [each for each in summary.get("gaps") or [] if document_id in (None, each["document_id"])]
    text = summary["summary"] if summary["state"] == "completed" else None
    missing = next((each["error"] for each in gaps if document_id and each["start"] is None), None)
    if missing is not None and text is not None:
        return failed(source, str(missing["code"]), str(missing["message"]))
    quotes = [
        {name: each[name] for name in _QUOTE_FIELDS}
        for each in summary.get("quotes") or []  # servers of releases before have none
        if document_id is None or each["document_id"] in (None, document_id)
    ]
    return DocumentResult(
        source,
        summary=text,
        quotes=tuple(quotes),
        chunks=tuple({name: each[name] for name in ("pages", "start", "end", "summary")} for each in chunks),
        gaps=tuple(gaps),
        usage=summary["usage"],
        error=None if text is not None else _error(summary),
    )


def of_answers(source: SourceFile, answers: Mapping[str, Any]) -> DocumentResult:
    """Build the result of a document whose answers have ended."""
    is_failed = answers["state"] != "completed"
    return DocumentResult(
        source,
        answers=tuple(answers["answers"]),
        usage=answers["usage"],
        error=_error(answers, "Its answers are") if is_failed else None,
    )


def of_extraction(source: SourceFile, extraction: Mapping[str, Any]) -> DocumentResult:
    """Build the result of a document whose extraction has ended."""
    is_failed = extraction["state"] != "completed"
    return DocumentResult(
        source,
        extraction=None if is_failed else extraction,
        usage=extraction["usage"],
        error=_error(extraction, "Its extraction is") if is_failed else None,
    )


def _error(summary: Mapping[str, Any], what: str = "The summary is") -> dict[str, str]:
    error = summary.get("error") or {}
    state = str(summary["state"])
    return {
        "code": str(error.get("code") or state),
        "message": str(error.get("message") or f"{what} {state}."),
    }


def as_object(result: DocumentResult) -> dict[str, object]:
    """Convert the result to a JSON object."""
    return {
        "path": result.source.shown,
        "summary": result.summary,
        "chunks": list(result.chunks),
        "quotes": list(result.quotes),
        "usage": result.usage,
        "error": result.error,
    }


def heading(kind: Format) -> str:
    """Return the text that precedes the first of several results."""
    return {Format.JSON: "[\n", Format.CSV: csv_line(_COLUMNS), Format.MD: ""}[kind]


def ending(kind: Format, *, num_results: int) -> str:
    """Return the text that follows the last of several results."""
    if kind is not Format.JSON:
        return ""
    return "\n]\n" if num_results else "]\n"


def one_of_many(result: DocumentResult, kind: Format, *, place: int) -> str:
    """Format the result that follows `place` others."""
    match kind:
        case Format.JSON:
            return (",\n" if place else "") + json.dumps(as_object(result), indent=2, ensure_ascii=False)
        case Format.CSV:
            return _row(result)
        case Format.MD:
            return ("\n" if place else "") + markdown([result], as_shown)


def alone(result: DocumentResult, kind: Format, link: Link) -> str:
    """Format a whole file of one result."""
    if kind is Format.JSON:
        return json.dumps(as_object(result), indent=2, ensure_ascii=False) + "\n"
    return combined([result], kind, link)


def combined(results: list[DocumentResult], kind: Format, link: Link) -> str:
    """Format a whole file of results that share one summary."""
    match kind:
        case Format.JSON:
            return json.dumps([as_object(each) for each in results], indent=2, ensure_ascii=False) + "\n"
        case Format.CSV:
            return heading(kind) + "".join(map(_row, results))
        case Format.MD:
            return markdown(results, link)


def markdown(results: list[DocumentResult], link: Link) -> str:
    """Format the summary under its title, with links from its parts to their sources."""
    is_combined = len(results) > 1
    title = f"{len(results)} documents" if is_combined else results[0].source.shown
    whole = next((each for each in results if each.summary is not None), results[0])
    lines = [f"# {_plain(title)}", ""]
    if whole.summary is None:
        error = whole.error or {"code": "unknown", "message": ""}
        lines.append(f"> Not summarized: {_plain(error['message'])} ({error['code']})")
    else:
        lines.append(defused(whole.summary.strip()))
    for result in results:
        lines += _sources(result, link(result.source), with_name=is_combined)
    return "\n".join(lines) + "\n"


def _sources(result: DocumentResult, address: str, *, with_name: bool) -> Iterable[str]:
    """Yield the list of parts; a single chunk without pages needs none."""
    if with_name:
        yield from ("", f"## {_plain(result.source.shown)}")
        if result.error and result.summary is None:
            yield from ("", f"> Left out: {_plain(result.error['message'])} ({result.error['code']})")
    if result.summary is None:
        return
    if with_name or len(result.chunks) > 1 or any(each["pages"] for each in result.chunks):
        yield from ("", "### Parts" if with_name else "## Parts", "")
        # The summary of a single part is the whole summary, which is printed above.
        has_texts = with_name or len(result.chunks) > 1
        yield from (
            f"- {_place(each, address)}{_part_text(each) if has_texts else ''}" for each in result.chunks
        )
    if result.quotes:
        yield from ("", "### Quoted" if with_name else "## Quoted", "")
        yield from (
            f"- \u201c{_plain(each['quote'])}\u201d: {_found(each, address)}" for each in result.quotes
        )
    if result.gaps:
        yield from ("", "### Left out" if with_name else "## Left out", "")
        for gap in result.gaps:
            yield f"- {_place(gap, address)}: {_plain((gap.get('error') or {}).get('message', 'unknown'))}"


def _place(part: Mapping[str, Any], address: str) -> str:
    """Format a link: `[pages 3-5](report.pdf#page=3), characters 100-200`.

    The end of the range is exclusive.
    """
    start, end = part.get("start"), part.get("end")
    characters = f"characters {start:,}-{end:,}" if start is not None and end is not None else "all of it"
    target = quote(address, safe="/:" if "://" in address else "/")
    if not part.get("pages"):
        return f"[{characters}]({target})"
    first, last = part["pages"]
    pages = f"page {first}" if first == last else f"pages {first}-{last}"
    return f"[{pages}]({target}#page={first}), {characters}"


def _found(quoted: Mapping[str, Any], address: str) -> str:
    if quoted["quote_in_text"]:
        return _place(quoted, address)
    return "not in the text" if quoted["quote_in_text"] is False else "not looked up"


def _part_text(chunk: Mapping[str, Any]) -> str:
    return f": {_plain(chunk['summary'])}" if chunk["summary"] else ": left out"


def _plain(text: str) -> str:
    """Put the text on one line without links."""
    return defused(" ".join(text.split()))


def _row(result: DocumentResult) -> str:
    usage, error = result.usage or {}, result.error or {}
    return csv_line(
        (
            result.source.shown,
            result.summary or "",
            len(result.chunks),
            len(result.gaps),
            usage.get("prompt_tokens", ""),
            usage.get("completion_tokens", ""),
            error.get("code", ""),
            error.get("message", ""),
            usage.get("cached_tokens", ""),
        )
    )
