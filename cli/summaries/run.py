"""A run over documents: hash each one, find it again or upload it, summarize it, wait for the result."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, TypeVar

from cli.client import RefusedError, ServerUnreachableError
from cli.summaries import options, results
from cli.summaries.progress import ProgressDisplay
from cli.summaries.remote import LATER, FileChangedError, StoppedError, SummaryClient, content_of
from cli.summaries.results import DocumentResult
from cli.summaries.sources import SourceFile

T = TypeVar("T")
R = TypeVar("R")

_REFUSED_FOR_ALL: Final = frozenset({401, 403})  # a rejected key fails every document


@dataclass(frozen=True, slots=True)
class DocumentOutcome:
    """The outcome of one document.

    Attributes:
        is_final: True if the same file would end the same way again; False if the server was unavailable or
            the run stopped.
        fetch: returns the result, from the server if necessary, so a finished document takes no memory.
        summary_id: id of the document's own summary; None if it has none.
    """

    source: SourceFile
    is_completed: bool
    is_final: bool
    fetch: Callable[[], DocumentResult]
    summary_id: str | None = None


@dataclass(frozen=True, slots=True)
class DocumentFailure:
    """The failure of one document; `is_final` as in `DocumentOutcome`."""

    result: DocumentResult
    is_final: bool


class SummaryRun:
    """A run over documents with one set of options; its methods are thread-safe.

    Attributes:
        fatal_error: the error that makes every further request pointless; None while the server is usable.

    Args:
        fields: of the request for each summary.
        again: start a new summary even if an earlier run has one.
        result_of: makes the result of an ended summary, or of what the server makes in its place.
    """

    def __init__(
        self,
        server: SummaryClient,
        fields: dict[str, object],
        *,
        model: str,
        progress: ProgressDisplay,
        again: bool = False,
        result_of: Callable[[SourceFile, Mapping[str, Any]], DocumentResult] = results.of_summary,
    ) -> None:
        self._server = server
        self._fields = fields
        self._model = model
        self._progress = progress
        self._again = again
        self._result_of = result_of
        self.fatal_error: ServerUnreachableError | RefusedError | None = None

    def summarize_one(self, source: SourceFile) -> DocumentOutcome:
        """Summarize one document and wait for the outcome."""
        self._progress.began(source)
        ended = self._or_failure(source, lambda: self._summarize(source))
        if isinstance(ended, DocumentFailure):
            result = ended.result
            ended = DocumentOutcome(source, is_completed=False, is_final=ended.is_final, fetch=lambda: result)
        self._progress.ended(source, ended.fetch() if not ended.is_completed else None)
        return ended

    def add(self, source: SourceFile) -> dict[str, Any] | DocumentFailure:
        """Upload one document and return it."""
        return self._or_failure(source, lambda: self._upload(source))

    def read(self, source: SourceFile) -> dict[str, Any] | DocumentFailure:
        """Upload one document, wait for its text and return it."""
        self._progress.began(source)
        document = self.add(source)
        if isinstance(document, dict):
            document_id = document["id"]
            document = self._or_failure(source, lambda: self._extracted(source, document_id))
        self._progress.ended(source, document.result if isinstance(document, DocumentFailure) else None)
        return document

    def combined(
        self, sent: Sequence[tuple[SourceFile, dict[str, Any] | DocumentFailure]]
    ) -> list[DocumentResult]:
        """Make one summary of all uploaded documents and return each one's result.

        With `on_gap=fail`, one document that could not be uploaded fails all of them.
        """
        documents = {source: each for source, each in sent if isinstance(each, dict)}
        missing = {source: each.result for source, each in sent if isinstance(each, DocumentFailure)}
        if not documents or (missing and self._fields.get("on_gap") == "fail"):
            code, message = "gap", "Another document could not be read, and --on-gap is fail."
            return [missing.get(source) or results.failed(source, code, message) for source, _ in sent]
        whole = self._or_failure(next(iter(documents)), lambda: self._whole(list(documents.values())))
        if isinstance(whole, DocumentFailure):
            return [missing.get(source) or replace(whole.result, source=source) for source, _ in sent]
        return [
            each.result
            if isinstance(each, DocumentFailure)
            else results.of_summary(source, whole, document_id=each["id"])
            for source, each in sent
        ]

    def _whole(self, documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Make one summary of these documents and wait until it ends."""
        fields = {**self._fields, "combine": True}
        ids = list(dict.fromkeys(each["id"] for each in documents))
        # The ids are part of the name: a document uploaded again after its deletion is another one.
        names = [each["sha256"] for each in documents] + ids
        started = self._running(names, fields, lambda: ids)
        ended = self._server.wait(started, on_change=self._progress.seen_whole)
        return self._server.summary(ended["id"])

    def _summarize(self, source: SourceFile) -> DocumentOutcome:
        content = content_of(source.path) if source.version is None else None
        named = content or source.version or ""
        summary = self._running([named], self._fields, lambda: [self._upload(source, content)["id"]])
        ended = self._server.wait(
            summary,
            on_change=lambda now: self._progress.seen(source, now),
            poll_seconds=self._progress.poll_seconds,
        )
        summary_id: str = ended["id"]
        return DocumentOutcome(
            source,
            is_completed=ended["state"] == "completed",
            is_final=True,
            fetch=lambda: self._fetched(source, summary_id),
            summary_id=summary_id,
        )

    def _fetched(self, source: SourceFile, summary_id: str) -> DocumentResult:
        """Fetch the result of an ended summary, or say why it is no longer available."""
        summary = self._or_failure(source, lambda: self._server.summary(summary_id))
        return summary.result if isinstance(summary, DocumentFailure) else self._result_of(source, summary)

    def _running(
        self, contents: Sequence[str], fields: dict[str, object], add: Callable[[], list[str]]
    ) -> dict[str, Any]:
        """Find or start the summary of these contents; an earlier one may have ended.

        `add` uploads the documents and returns their ids. Two processes that start the same summary at the
        same time start one.
        """
        name = options.digest(contents, fields, model=self._model)
        found = self._server.find(name)
        if found.summary is not None and not self._again:
            return found.summary
        documents = add()
        key = hashlib.sha256(repr((name, documents, found.newest)).encode()).hexdigest()
        return self._server.start(documents, {**fields, "custom_id": name}, key=key)

    def _upload(self, source: SourceFile, content: str | None = None) -> dict[str, Any]:
        """Upload the document without its folders, which the server must not learn.

        Raises:
            FileChangedError: its SHA-256 is not `content`.
        """
        name = source.path.name.encode(errors="replace").decode()
        with source.at_hand() as path:
            return self._server.add(path, name, content or content_of(path))

    def _extracted(self, source: SourceFile, document_id: str) -> dict[str, Any] | DocumentFailure:
        """Wait until the document's text is extracted, or cannot be."""
        document = self._server.extracted(document_id)
        if document["state"] == "ready":
            return document
        error = document["error"] or {"code": document["state"], "message": "The document cannot be read."}
        return _failed(source, error["code"], error["message"])

    def _or_failure(self, source: SourceFile, work: Callable[[], T]) -> T | DocumentFailure:
        """Run the work and turn its errors into a failure; some end the whole run."""
        if self.fatal_error is not None:
            return _failed(source, self.fatal_error.code, self.fatal_error.message, is_final=False)
        try:
            return work()
        except OSError as error:
            return _failed(source, "file_unreadable", error.strerror or str(error))
        except (FileChangedError, StoppedError) as error:
            return _failed(source, error.code, error.message, is_final=False)
        except ServerUnreachableError as error:
            self.fatal_error = error
            return _failed(source, error.code, error.message, is_final=False)
        except RefusedError as error:
            # A limit that stayed reached for as long as one waits keeps the others out too.
            refuses_all = error.status in _REFUSED_FOR_ALL or (error.status == LATER and not error.is_final)
            if refuses_all:
                self.fatal_error = error
            is_final = error.status < 500 and not refuses_all
            return _failed(source, error.server_code, error.message, is_final=is_final)


def _failed(source: SourceFile, code: str, message: str, *, is_final: bool = True) -> DocumentFailure:
    return DocumentFailure(results.failed(source, code, message), is_final)


def in_threads(work: Callable[[T], R], items: Iterable[T], *, num_threads: int) -> Iterator[tuple[int, R]]:
    """Run the work for each item in threads; yield place and result as each ends.

    Takes an item when a thread is free for it. The threads are daemons, so an interrupted process does not
    wait for them.
    """
    waiting = enumerate(items)
    taking = Lock()
    ended: SimpleQueue[tuple[int, R] | BaseException | None] = SimpleQueue()

    def serve() -> None:
        try:
            while True:
                with taking:
                    place, item = next(waiting, (-1, None))
                if item is None:
                    return
                ended.put((place, work(item)))
        except BaseException as error:  # noqa: BLE001  # raised again by the consumer of the results
            ended.put(error)
        finally:
            ended.put(None)

    for number in range(num_threads):
        Thread(target=serve, name=f"document-{number}", daemon=True).start()
    num_left = num_threads
    while num_left:
        each = ended.get()
        if each is None:
            num_left -= 1
        elif isinstance(each, BaseException):
            raise each
        else:
            yield each
