"""A run over documents: hash each one, find it again or upload it, summarize it, wait for the result."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, TypeVar

from cli.client import RefusedError, ServerUnreachableError
from cli.summaries import options, results
from cli.summaries.progress import ProgressDisplay
from cli.summaries.remote import FileChangedError, StoppedError, Summaries, content_of
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


class SummaryRun:
    """A run over documents with one set of options; its methods are thread-safe.

    Attributes:
        lost: the error that makes every further request pointless; None while the server is usable.

    Args:
        fields: of the request for each summary.
        again: start a new summary even if an earlier run has one.
    """

    def __init__(
        self,
        server: Summaries,
        fields: dict[str, object],
        *,
        model: str,
        progress: ProgressDisplay,
        again: bool = False,
    ) -> None:
        self._server = server
        self._fields = fields
        self._model = model
        self._progress = progress
        self._again = again
        self.lost: ServerUnreachableError | RefusedError | None = None

    def one(self, source: SourceFile) -> DocumentOutcome:
        """Summarize one document and wait for the outcome."""
        self._progress.began(source)
        ended = self._kept(source, lambda: self._summarize(source))
        self._progress.ended(source, ended.fetch() if not ended.is_completed else None)
        return ended

    def add(self, source: SourceFile) -> dict[str, Any] | DocumentResult:
        """Upload one document; return it, or the failed result."""
        found: list[dict[str, Any]] = []

        def upload() -> DocumentOutcome:
            found.append(self._server.add(source.path, _filename(source), content_of(source.path)))
            return _never(source)

        kept = self._kept(source, upload)
        return found[0] if found else kept.fetch()

    def read(self, source: SourceFile) -> dict[str, Any] | DocumentResult:
        """Upload one document and wait for its text; return it, or the failed result."""
        self._progress.began(source)
        document = self.add(source)
        if not isinstance(document, DocumentResult):
            found = document
            kept = self._kept(source, lambda: _ended(source, self._server.extracted(found["id"])))
            document = found if kept.is_completed else kept.fetch()
        self._progress.ended(source, document if isinstance(document, DocumentResult) else None)
        return document

    def combined(
        self, sent: Sequence[tuple[SourceFile, dict[str, Any] | DocumentResult]]
    ) -> list[DocumentResult]:
        """Make one summary of all uploaded documents and return each one's result.

        With `on_gap=fail`, one document that could not be uploaded fails all of them.
        """
        documents = {source: each for source, each in sent if isinstance(each, dict)}
        missing = {source: each for source, each in sent if isinstance(each, DocumentResult)}
        if not documents or (missing and self._fields.get("on_gap") == "fail"):
            code, message = "gap", "another document could not be read, and --on-gap is fail"
            return [missing.get(source) or results.failed(source, code, message) for source, _ in sent]
        found: list[dict[str, Any]] = []

        def summarize() -> DocumentOutcome:
            found.append(self._whole(list(documents.values())))
            return _never(first)

        first = next(iter(documents))
        kept = self._kept(first, summarize)
        if not found:
            error = kept.fetch().error or {}
            return [
                missing.get(source) or results.failed(source, error["code"], error["message"])
                for source, _ in sent
            ]
        return [
            each
            if isinstance(each, DocumentResult)
            else results.of_summary(source, found[0], document_id=each["id"])
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
        content = content_of(source.path)

        def add() -> list[str]:
            return [self._server.add(source.path, _filename(source), content)["id"]]

        summary = self._running([content], self._fields, add)
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
        found: list[DocumentResult] = []

        def fetch() -> DocumentOutcome:
            found.append(results.of_summary(source, self._server.summary(summary_id)))
            return _never(source)

        kept = self._kept(source, fetch)
        return found[0] if found else kept.fetch()

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

    def _kept(self, source: SourceFile, work: Callable[[], DocumentOutcome]) -> DocumentOutcome:
        """Run the work and turn its errors into the outcome; some end the whole run."""
        if self.lost is not None:
            return _failed(source, self.lost.code, self.lost.message, is_final=False)
        try:
            return work()
        except OSError as error:
            return _failed(source, "file_unreadable", error.strerror or str(error))
        except (FileChangedError, StoppedError) as error:
            return _failed(source, error.code, error.message, is_final=False)
        except ServerUnreachableError as error:
            self.lost = error
            return _failed(source, error.code, error.message, is_final=False)
        except RefusedError as error:
            if error.status in _REFUSED_FOR_ALL:
                self.lost = error
            is_final = error.status < 500 and error.status not in _REFUSED_FOR_ALL
            return _failed(source, error.server_code, error.message, is_final=is_final)


def _failed(source: SourceFile, code: str, message: str, *, is_final: bool = True) -> DocumentOutcome:
    result = results.failed(source, code, message)
    return DocumentOutcome(source, is_completed=False, is_final=is_final, fetch=lambda: result)


def _ended(source: SourceFile, document: dict[str, Any]) -> DocumentOutcome:
    """Convert a document that is extracted, or failed to be, into an outcome."""
    if document["state"] == "ready":
        return DocumentOutcome(source, is_completed=True, is_final=True, fetch=lambda: DocumentResult(source))
    error = document["error"] or {"code": document["state"], "message": "the document cannot be read"}
    return _failed(source, error["code"], error["message"])


def _never(source: SourceFile) -> DocumentOutcome:
    """Return a placeholder for work that passes its result on in another way."""
    return _failed(source, "none", "")


def _filename(source: SourceFile) -> str:
    """Return the file's name without its folders, which the server must not learn."""
    return source.path.name.encode(errors="replace").decode()


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
