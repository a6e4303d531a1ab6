"""The result of each document."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from longbatch.documents.sources import SourceFile
from longbatch.tables.findings import shown_gaps

_WARNING_FIELDS: Final = ("code", "message", "pages")
_QUOTE_FIELDS: Final = ("quote", "quote_in_text", "pages", "start", "end")


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
        warnings: about the document's text, each with `code`, `message` and perhaps `pages`.
        usage: tokens; None if no job ran.
        error: `code` and `message`; None if the document completed.
        tree_id: id of what the server made; None if it made nothing.
    """

    source: SourceFile
    summary: str | None = None
    chunks: tuple[Mapping[str, Any], ...] = ()
    gaps: tuple[Mapping[str, Any], ...] = ()
    quotes: tuple[Mapping[str, Any], ...] = ()
    answers: tuple[Mapping[str, Any], ...] = ()
    extraction: Mapping[str, Any] | None = None
    warnings: tuple[Mapping[str, Any], ...] = ()
    usage: Mapping[str, int] | None = None
    error: Mapping[str, str] | None = None
    tree_id: str | None = None


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
        for each in summary.get("quotes") or []
        if document_id is None or each["document_id"] in (None, document_id)
    ]
    return DocumentResult(
        source,
        summary=text,
        quotes=tuple(quotes),
        chunks=tuple({name: each[name] for name in ("pages", "start", "end", "summary")} for each in chunks),
        gaps=tuple(gaps),
        warnings=_warnings(summary, document_id),
        usage=summary["usage"],
        error=None if text is not None else _error(summary),
    )


def of_answers(source: SourceFile, answers: Mapping[str, Any]) -> DocumentResult:
    """Build the result of a document whose answers have ended."""
    is_failed = answers["state"] != "completed"
    return DocumentResult(
        source,
        answers=tuple(answers["answers"]),
        warnings=_warnings(answers),
        usage=answers["usage"],
        error=_error(answers, "Its answers are") if is_failed else None,
    )


def of_extraction(source: SourceFile, extraction: Mapping[str, Any]) -> DocumentResult:
    """Build the result of a document whose extraction has ended."""
    is_failed = extraction["state"] != "completed"
    return DocumentResult(
        source,
        extraction=None if is_failed else extraction,
        warnings=_warnings(extraction),
        usage=extraction["usage"],
        error=_error(extraction, "Its extraction is") if is_failed else None,
    )


def _warnings(tree: Mapping[str, Any], document_id: str | None = None) -> tuple[Mapping[str, Any], ...]:
    """Return the warnings of this document, or of all."""
    return tuple(
        {name: each[name] for name in _WARNING_FIELDS if name in each}
        for each in tree["warnings"]
        if document_id in (None, each["document_id"])
    )


def _error(summary: Mapping[str, Any], what: str = "The summary is") -> dict[str, str]:
    error = summary.get("error") or {}
    state = str(summary["state"])
    return {
        "code": str(error.get("code") or state),
        "message": str(error.get("message") or f"{what} {state}."),
    }


def gap_text(gap: Mapping[str, Any]) -> str:
    """Describe a part that was left out: `pages 3-4 left out: reason`."""
    place = shown_gaps([gap]) if gap.get("start") is not None or gap.get("pages") else "all of it"
    message = (gap.get("error") or {}).get("message", "unknown")
    return f"{place} left out: {message}"
