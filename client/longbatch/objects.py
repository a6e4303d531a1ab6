"""What calls return: jobs, runs, and what was found in documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from longbatch.calls import ENDED
from longbatch.errors import NotCompletedError

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """Why something failed.

    Attributes:
        code: stable machine-readable name.
        message: for people.
    """

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    @classmethod
    def of(cls, error: Mapping[str, Any] | None) -> Failure | None:
        """Read an `error` of the API; None if there is none."""
        return None if error is None else cls(str(error["code"]), str(error["message"]))


@dataclass(frozen=True, eq=False)
class JobFields:
    """A job as the server described it last.

    Attributes:
        raw: the server's object, with every field.
    """

    raw: Mapping[str, Any] = field(repr=False)

    @property
    def id(self) -> str:
        """The job's id, `job_…`."""
        return str(self.raw["id"])

    @property
    def state(self) -> str:
        """One of blocked, preparing, queued, running, completed, failed, cancelled, expired."""
        return str(self.raw["state"])

    @property
    def has_ended(self) -> bool:
        """True if the state is final."""
        return self.state in ENDED

    @property
    def custom_id(self) -> str | None:
        """The caller's own name for the job."""
        found: str | None = self.raw["custom_id"]
        return found

    @property
    def error(self) -> Failure | None:
        """Why the job failed; None if it did not."""
        return Failure.of(self.raw["error"])

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """Tokens, after `wait()` or `result()`."""
        found: Mapping[str, Any] | None = self.raw.get("usage")
        return found

    @property
    def partial_output(self) -> str | None:
        """The output of an ended job, whole or not, after `wait()` or `result()`."""
        found: str | None = self.raw.get("output")
        return found

    @property
    def output(self) -> str:
        """The output of a completed job, after `wait()` or `result()`.

        Raises:
            NotCompletedError: the job did not complete, has not ended, or its output was not fetched.
        """
        if not self.has_ended:
            raise NotCompletedError(f"{self.id} is {self.state}: call wait() first.")
        if self.state != "completed":
            reason = f": {self.error}" if self.error else ""
            raise NotCompletedError(f"{self.id} is {self.state}{reason}")
        if "output" not in self.raw:
            raise NotCompletedError(f"The output of {self.id} was not fetched: call result().")
        return self.partial_output or ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.state}>"


@dataclass(frozen=True)
class Run:
    """What a command started: a summary, a set of answers or an extraction.

    Attributes:
        kind: `summary`, `answers` or `extraction`.
        documents: ids of its documents.
        raw: the server's object, with every field.
    """

    id: str
    kind: str
    state: str
    documents: tuple[str, ...]
    created_at: datetime
    error: Failure | None
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class DocumentSummary:
    """The summary of one document.

    Attributes:
        path: of the document, as it was given or found.
        summary: the text; None if there is none, and `error` has the reason.
        warnings: what a reader should know, such as pages without text or parts left out.
        quotes: the passages that the summary quotes, with `quote_in_text`, `pages`, `start` and `end`.
        chunks: each part of the text with `pages`, `start`, `end` and its own `summary`.
        usage: tokens; None if no job ran.
        id: of the summary; None if none was started.
    """

    path: str
    summary: str | None
    warnings: tuple[str, ...] = ()
    quotes: tuple[Mapping[str, Any], ...] = ()
    chunks: tuple[Mapping[str, Any], ...] = ()
    usage: Mapping[str, int] | None = None
    error: Failure | None = None
    id: str | None = None


@dataclass(frozen=True)
class Answer:
    """The answer of one document to one question.

    Attributes:
        path: of the document.
        answer: None if the document has none (`found` is False) or the question failed (`error`).
        found: whether the document has an answer; None if it failed.
        quote: the passage that the answer rests on.
        quote_in_text: whether its words are in the document's text.
        page: the quote's first page, from 1; None without pages.
        pages: its first and last page.
        start: place of the quote in the text, in characters.
        end: its end, exclusive.
        warnings: as of `DocumentSummary`.
        id: of the document's set of answers; None if none was started.
    """

    path: str
    question: str
    answer: str | None
    found: bool | None = None
    quote: str | None = None
    quote_in_text: bool | None = None
    page: int | None = None
    pages: tuple[int, int] | None = None
    start: int | None = None
    end: int | None = None
    warnings: tuple[str, ...] = ()
    error: Failure | None = None
    id: str | None = None


@dataclass(frozen=True)
class Extraction(Generic[T]):
    """What was extracted from one document.

    Attributes:
        path: of the document.
        value: an instance of the model that was asked for, or a dict; None if it is not valid or failed.
        values: what was found by field, also if it is not valid; None if it failed.
        fault: why it is not valid; None if it is.
        fields: each field with its `value` and `sources` (pages, quote, place).
        warnings: as of `DocumentSummary`.
        usage: tokens; None if no job ran.
        id: of the extraction; None if none was started.
    """

    path: str
    value: T | None
    values: Mapping[str, Any] | None = None
    fault: str | None = None
    fields: tuple[Mapping[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    usage: Mapping[str, int] | None = None
    error: Failure | None = None
    id: str | None = None


@dataclass(frozen=True)
class Event:
    """A webhook event whose signature was verified.

    Attributes:
        id: the same at every delivery of the event.
        type: such as `summary.completed`.
        data: what the event carries.
    """

    id: str
    type: str
    created_at: datetime
    data: Mapping[str, Any]
