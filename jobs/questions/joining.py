"""The answer to one question, drawn from what the jobs of its tree replied. Pure.

A document has no answer if none of its parts has one, whatever a join makes of that. A part that could not be
asked is a gap of the answer, and says which part it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jobs.questions.quotes import QuotableText, pages_of
from jobs.questions.replies import MalformedAnswerError, Reply, parse_reply

Error = Mapping[str, object]
_UNKNOWN: Final[Error] = {"code": "internal_error", "message": "The job ended without an answer."}


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job that asks a question ended.

    Attributes:
        output: that it generated; None: it did not complete.
        error: why not; None: it completed.
    """

    output: str | None
    error: Error | None = None


@dataclass(frozen=True, slots=True)
class AskedPart:
    """A part of a document that was asked.

    Attributes:
        start, end: characters of the text.
        pages: first and last, from 1; None: no pages.
    """

    start: int
    end: int
    pages: tuple[int, int] | None
    ended: JobEnd


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a document says to a question; `Finding` describes the fields."""

    value: str | None = None
    quote: str | None = None
    is_quoted: bool | None = None
    place: tuple[int, int] | None = None
    pages: tuple[int, int] | None = None
    gaps: tuple[Mapping[str, object], ...] = ()
    error: Error | None = None


def conclude(
    parts: Sequence[AskedPart],
    joined: JobEnd | None,
    *,
    text: QuotableText | None,
    page_starts: Sequence[int] = (),
) -> Conclusion:
    """Draw the answer from the replies about the parts and the one that joins them.

    Args:
        parts: of the document, in order; at least one.
        joined: the end of the last join; None: there is one part.
        text: of the document; None: it no longer exists.
        page_starts: the character at which each page starts.
    """
    replies = [reply_of(each.ended) for each in parts]
    gaps = tuple(gap_of(part, reply) for part, reply in zip(parts, replies, strict=True) if _failed(reply))
    answering = [
        part for part, reply in zip(parts, replies, strict=True) if isinstance(reply, Reply) and reply.answer
    ]
    if len(gaps) == len(parts):
        return Conclusion(gaps=gaps if len(parts) > 1 else (), error=gaps[0]["error"])  # type: ignore[arg-type]  # made by `gap_of`
    if not answering:
        return Conclusion(gaps=gaps)
    last = replies[0] if joined is None else reply_of(joined)
    if not isinstance(last, Reply) and len(answering) == 1:
        last = reply_of(answering[0].ended)  # nothing is lost without the join
    if not isinstance(last, Reply):
        return Conclusion(gaps=gaps, error=last)
    if last.answer is None:
        return Conclusion(gaps=gaps)
    place = text.find(last.quote) if text is not None and last.quote else None
    return Conclusion(
        value=last.answer,
        quote=last.quote,
        is_quoted=None if text is None or last.quote is None else place is not None,
        place=place,
        pages=pages_of(page_starts, *place) if place else _span(answering),
        gaps=gaps,
    )


def reply_of(ended: JobEnd) -> Reply | Error:
    """Return the job's reply, or the error for which it has none."""
    if ended.output is None:
        return unanswered(ended)
    try:
        return parse_reply(ended.output)
    except MalformedAnswerError as error:
        return {"code": error.code, "message": error.message}


def unanswered(ended: JobEnd) -> Error:
    """Return why a job has no output."""
    return ended.error or _UNKNOWN


def _failed(reply: Reply | Error) -> bool:
    return not isinstance(reply, Reply)


def gap_of(part: AskedPart, error: Reply | Error) -> Mapping[str, object]:
    """Describe a part that the whole leaves out, and why."""
    pages = None if part.pages is None else list(part.pages)
    return {"start": part.start, "end": part.end, "pages": pages, "error": error}


def _span(parts: Sequence[AskedPart]) -> tuple[int, int] | None:
    """Return the first and last page of these parts."""
    pages = [each.pages for each in parts if each.pages is not None]
    return (min(first for first, _ in pages), max(last for _, last in pages)) if pages else None
