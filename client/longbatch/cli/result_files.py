"""The file of a document's summary: JSON, Markdown or CSV."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

from longbatch.backports import StrEnum
from longbatch.documents.results import DocumentResult
from longbatch.documents.sources import SourceFile
from longbatch.markdown import defused
from longbatch.tables.cells import csv_line
from longbatch.tables.findings import shown_warnings

# Returns the link from a result's file to its source.
Link = Callable[[SourceFile], str]

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
    "warnings",
)


class Format(StrEnum):
    """File format of summaries."""

    MD = "md"
    JSON = "json"
    CSV = "csv"


def as_shown(source: SourceFile) -> str:
    """Return the path of a source from the directory of the command."""
    return source.shown


def as_object(result: DocumentResult) -> dict[str, object]:
    """Convert the result to a JSON object."""
    return {
        "path": result.source.shown,
        "summary": result.summary,
        "chunks": list(result.chunks),
        "quotes": list(result.quotes),
        "warnings": list(result.warnings),
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
    for warning in result.warnings:
        yield from ("", f"> Warning: {_plain(str(warning['message']))}")
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
            shown_warnings(result.warnings),
        )
    )
