"""A run over documents: hash each one, find it again or upload it, start its tree, wait for the result."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any, Final, Protocol, TypeVar

from longbatch.calls import JSON
from longbatch.documents import results
from longbatch.documents.opening import Opening
from longbatch.documents.results import DocumentResult
from longbatch.documents.sources import SourceFile
from longbatch.documents.trees import Trees, content_of
from longbatch.errors import ApiError, FileChangedError, ServerUnreachableError, StoppedError
from longbatch.flows import TOO_MANY, Flow, work

T = TypeVar("T")

_REFUSED_FOR_ALL: Final = frozenset({401, 403})  # a rejected key fails every document
# Fields that change when and how a tree is made, but not its result.
_NOT_OF_THE_RESULT: Final = frozenset({"priority", "attachments"})
# The code of the warning that attached files are documents of their own.
SEPARATE: Final = "attachments_separate"


class Observer(Protocol):
    """Follows every document of a run; any thread may call it.

    Attributes:
        poll_seconds: how often to poll a running document.
    """

    poll_seconds: int

    def began(self, source: SourceFile) -> None:
        """Take note that work on the document begins."""

    def seen(self, source: SourceFile, tree: Mapping[str, Any]) -> None:
        """Take note of the state of the document's tree."""

    def seen_whole(self, tree: Mapping[str, Any]) -> None:
        """Take note of the state of the one tree of all documents."""

    def ended(self, source: SourceFile, result: DocumentResult | None) -> None:
        """Take note that the document ended; `result` is None if it completed."""

    def grew(self, number: int) -> None:
        """Add files attached to a document to the total."""


class NoObserver:
    """An observer that ignores everything."""

    poll_seconds = 20

    def began(self, source: SourceFile) -> None:
        """Ignore it."""

    def seen(self, source: SourceFile, tree: Mapping[str, Any]) -> None:
        """Ignore it."""

    def seen_whole(self, tree: Mapping[str, Any]) -> None:
        """Ignore it."""

    def ended(self, source: SourceFile, result: DocumentResult | None) -> None:
        """Ignore it."""

    def grew(self, number: int) -> None:
        """Ignore it."""


@dataclass(frozen=True, slots=True)
class DocumentOutcome:
    """The outcome of one document.

    Attributes:
        is_final: True if the same file would end the same way again; False if the server was unavailable or
            the run stopped.
        fetch: the flow that returns the result, from the server if necessary, so that a finished document
            takes no memory.
        tree_id: id of the document's own tree; None if it has none.
        document_id: id of the document; None if the tree is not known.
        warnings: about the document's text, by their codes.
    """

    source: SourceFile
    is_completed: bool
    is_final: bool
    fetch: Callable[[], Flow[DocumentResult]]
    tree_id: str | None = None
    document_id: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DocumentFailure:
    """The failure of one document; `is_final` as in `DocumentOutcome`."""

    result: DocumentResult
    is_final: bool


class DocumentRun:
    """A run over documents with one set of options; flows of several documents may run at the same time.

    Attributes:
        fatal_error: the error that makes every further request pointless; None while the server is usable.
        opening: lets the shortest document start first; None starts each as soon as it is uploaded.

    Args:
        trees: the calls for what is made of each document.
        fields: of the request for each document, `encoding` of its text, and `attachments`: `name` leaves
            attached files out.
        model: the served model, part of each run's name.
        again: start a new tree even if an earlier run has one.
        result_of: makes the result of an ended tree.
        opening: lets the shortest document start first; None starts each as soon as it is uploaded.
    """

    def __init__(
        self,
        trees: Trees,
        fields: dict[str, object],
        *,
        model: str,
        observer: Observer | None = None,
        again: bool = False,
        result_of: Callable[[SourceFile, Mapping[str, Any]], DocumentResult] = results.of_summary,
        opening: Opening | None = None,
    ) -> None:
        self._trees = trees
        self._fields = fields
        self._reads_attachments = fields.get("attachments") != "name"
        self._encoding = str(fields["encoding"]) if fields.get("encoding") else None
        self._model = model
        self._observer = observer or NoObserver()
        self._again = again
        self._result_of = result_of
        self.opening = opening
        self.fatal_error: ServerUnreachableError | ApiError | None = None

    def process(self, source: SourceFile) -> Flow[list[DocumentOutcome]]:
        """Make the tree of a document, and of each file attached to it; wait for the outcomes, in order."""
        ended = yield from self._outcome(source, lambda: self._processed(source))
        if self.opening is not None:
            self.opening.ended(source, is_completed=ended.is_completed)
        return (yield from self._with_attachments(ended))

    def _outcome(
        self, source: SourceFile, flow: Callable[[], Flow[DocumentOutcome]]
    ) -> Flow[DocumentOutcome]:
        """Run the flow of one document and show the observer its beginning and end."""
        self._observer.began(source)
        ended = yield from self._or_failure(source, flow)
        if isinstance(ended, DocumentFailure):
            fetch = _returning(ended.result)
            ended = DocumentOutcome(source, is_completed=False, is_final=ended.is_final, fetch=fetch)
        failure = None if ended.is_completed else (yield from ended.fetch())
        self._observer.ended(source, failure)
        return ended

    def _with_attachments(self, ended: DocumentOutcome) -> Flow[list[DocumentOutcome]]:
        """Process the files attached to a document; the server bounds their number and depth."""
        source, document_id = ended.source, ended.document_id
        if document_id is None or SEPARATE not in ended.warnings or not self._reads_attachments:
            return [ended]
        document = yield from self._or_failure(source, lambda: self._trees.document(document_id))
        attached = [] if isinstance(document, DocumentFailure) else document["attachments"]
        if not attached:
            return [ended]
        self._observer.grew(len(attached))
        # They have results of their own, so the warning that names them would repeat those.
        warnings = tuple(code for code in ended.warnings if code != SEPARATE)
        found = [replace(ended, warnings=warnings, fetch=lambda: _without_separate(ended.fetch()))]
        for each, name in zip(attached, names_apart(each["filename"] for each in attached), strict=True):
            inner = source.within(name)
            child = yield from self._outcome(
                inner, partial(self._attached, inner, document_id=each["document_id"])
            )
            found += yield from self._with_attachments(child)
        return found

    def _attached(self, source: SourceFile, *, document_id: str) -> Flow[DocumentOutcome]:
        """Process a file that the server has found within another."""
        document = yield from self._trees.document(document_id)
        return (yield from self._made(source, document["sha256"], _returning([document_id])))

    def add(self, source: SourceFile) -> Flow[JSON | DocumentFailure]:
        """Upload one document and return it."""
        return (yield from self._or_failure(source, lambda: self._upload(source)))

    def read(self, source: SourceFile) -> Flow[JSON | DocumentFailure]:
        """Upload one document, wait for its text and return it."""
        self._observer.began(source)
        document = yield from self.add(source)
        if isinstance(document, dict):
            document_id = document["id"]
            document = yield from self._or_failure(source, lambda: self._extracted(source, document_id))
        self._observer.ended(source, document.result if isinstance(document, DocumentFailure) else None)
        return document

    def combined(
        self, sent: Sequence[tuple[SourceFile, JSON | DocumentFailure]]
    ) -> Flow[list[DocumentResult]]:
        """Make one summary of all uploaded documents and return each one's result.

        With `on_gap=fail`, one document that could not be uploaded fails all of them.
        """
        documents = {source: each for source, each in sent if isinstance(each, dict)}
        missing = {source: each.result for source, each in sent if isinstance(each, DocumentFailure)}
        if not documents or (missing and self._fields.get("on_gap") == "fail"):
            code, message = "gap", "Another document could not be read, and --on-gap is fail."
            return [missing.get(source) or results.failed(source, code, message) for source, _ in sent]
        first = next(iter(documents))
        whole = yield from self._or_failure(first, lambda: self._whole(list(documents.values())))
        if isinstance(whole, DocumentFailure):
            return [missing.get(source) or replace(whole.result, source=source) for source, _ in sent]
        return [
            each.result
            if isinstance(each, DocumentFailure)
            else results.of_summary(source, whole, document_id=each["id"])
            for source, each in sent
        ]

    def _whole(self, documents: Sequence[JSON]) -> Flow[JSON]:
        """Make one summary of these documents and wait until it ends."""
        fields = {**self._fields, "combine": True}
        ids = list(dict.fromkeys(each["id"] for each in documents))
        # The ids are part of the name: a document uploaded again after its deletion is another one.
        names = [each["sha256"] for each in documents] + ids
        started = yield from self._running(names, fields, _returning(ids))
        ended = yield from self._trees.wait(started, on_change=self._observer.seen_whole)
        return (yield from self._trees.whole(ended["id"]))

    def _processed(self, source: SourceFile) -> Flow[DocumentOutcome]:
        content = None
        if source.version is None:
            content = yield from work(lambda: content_of(source.path))
        named = content or source.version or ""

        def upload() -> Flow[list[str]]:
            document = yield from self._upload(source, content)
            if self.opening is not None:
                yield from self.opening.turn(source)
            return [document["id"]]

        def started() -> None:
            if self.opening is not None:
                self.opening.started(source)

        return (yield from self._made(source, named, upload, on_started=started))

    def _made(
        self,
        source: SourceFile,
        named: str,
        add: Callable[[], Flow[list[str]]],
        *,
        on_started: Callable[[], None] = lambda: None,
    ) -> Flow[DocumentOutcome]:
        """Find or start the tree of one document and wait for its end; arguments as of `_running`."""
        tree = yield from self._running([named], self._fields, add)
        on_started()
        ended = yield from self._trees.wait(
            tree,
            on_change=lambda now: self._observer.seen(source, now),
            poll_seconds=self._observer.poll_seconds,
        )
        tree_id: str = ended["id"]
        return DocumentOutcome(
            source,
            is_completed=ended["state"] == "completed",
            is_final=True,
            fetch=lambda: self._fetched(source, tree_id),
            tree_id=tree_id,
            document_id=(ended.get("documents") or [ended.get("document")])[0],
            warnings=tuple(each["code"] for each in ended["warnings"]),
        )

    def _fetched(self, source: SourceFile, tree_id: str) -> Flow[DocumentResult]:
        """Fetch the result of an ended tree, or the reason why it is no longer available."""
        tree = yield from self._or_failure(source, lambda: self._trees.whole(tree_id))
        if isinstance(tree, DocumentFailure):
            return tree.result
        return replace(self._result_of(source, tree), tree_id=tree_id)

    def _running(
        self, contents: Sequence[str], fields: dict[str, object], add: Callable[[], Flow[list[str]]]
    ) -> Flow[JSON]:
        """Find or start the tree of these contents; an earlier one may have ended.

        `add` uploads the documents and returns their ids. Two processes that start the same tree at the same
        time start one.
        """
        name = digest(contents, fields, model=self._model)
        found = yield from self._trees.find(name)
        if found.tree is not None and not self._again:
            return found.tree
        documents = yield from add()
        key = hashlib.sha256(repr((name, documents, found.newest)).encode()).hexdigest()
        return (yield from self._trees.start(documents, {**fields, "custom_id": name}, key=key))

    def _upload(self, source: SourceFile, content: str | None = None) -> Flow[JSON]:
        """Upload the document under its file name alone: the server must not learn its folders.

        Raises:
            FileChangedError: its SHA-256 is not `content`.
        """
        with ExitStack() as open_files:
            path = yield from work(lambda: open_files.enter_context(source.at_hand()))
            known = content or (yield from work(lambda: content_of(path)))
            document = yield from self._trees.add(path, known, name=source.path.name, encoding=self._encoding)
        if self.opening is not None:
            self.opening.uploaded(source, document["id"])
        return document

    def _extracted(self, source: SourceFile, document_id: str) -> Flow[JSON | DocumentFailure]:
        """Wait until the document's text is extracted, or cannot be."""
        document = yield from self._trees.extracted(document_id)
        if document["state"] == "ready":
            return document
        error = document["error"] or {"code": document["state"], "message": "The document cannot be read."}
        return _failed(source, error["code"], error["message"])

    def _or_failure(self, source: SourceFile, flow: Callable[[], Flow[T]]) -> Flow[T | DocumentFailure]:
        """Run the flow and turn its errors into a failure; some end the whole run."""
        if self.fatal_error is not None:
            return _failed(source, self.fatal_error.code, self.fatal_error.message, is_final=False)
        try:
            return (yield from flow())
        except OSError as error:
            return _failed(source, "file_unreadable", error.strerror or str(error))
        except (FileChangedError, StoppedError) as error:
            return _failed(source, error.code, error.message, is_final=False)
        except ServerUnreachableError as error:
            self.fatal_error = error
            return _failed(source, error.code, error.message, is_final=False)
        except ApiError as error:
            # A limit that stayed reached for as long as one waits keeps the others out too.
            refuses_all = error.status in _REFUSED_FOR_ALL or (
                error.status == TOO_MANY and not error.is_final
            )
            if refuses_all:
                self.fatal_error = error
            is_final = error.status < 500 and not refuses_all
            return _failed(source, error.code, error.message, is_final=is_final)


def _without_separate(fetched: Flow[DocumentResult]) -> Flow[DocumentResult]:
    """Fetch a result without the warning that names attached files."""
    result = yield from fetched
    return replace(result, warnings=tuple(each for each in result.warnings if each["code"] != SEPARATE))


def names_apart(filenames: Iterable[str]) -> list[str]:
    """Return names for files of one folder: no path leads out of it, and no two are equal."""
    found: list[str] = []
    for given in filenames:
        name = re.sub(r"[/\\\0]", "_", given)
        name = "unnamed" if name.strip(". ") == "" else name
        whole, number = PurePath(name), 1
        while name.lower() in {each.lower() for each in found}:
            number += 1
            name = f"{whole.stem} ({number}){whole.suffix}"
        found.append(name)
    return found


def digest(contents: Sequence[str], fields: Mapping[str, object], *, model: str) -> str:
    """Compute the name of a run: the same for the same files, options and model.

    Args:
        contents: SHA-256 of each file.
        fields: of the request.
        model: the served model.
    """
    kept = {name: value for name, value in fields.items() if name not in _NOT_OF_THE_RESULT}
    whole = json.dumps([1, contents, kept, model], sort_keys=True, ensure_ascii=True)
    return "cli-" + hashlib.sha256(whole.encode()).hexdigest()[:40]


def _failed(source: SourceFile, code: str, message: str, *, is_final: bool = True) -> DocumentFailure:
    return DocumentFailure(results.failed(source, code, message), is_final)


def _returning(value: T) -> Callable[[], Flow[T]]:
    """Make flows that return the value and take no step."""

    def flow() -> Flow[T]:
        return value
        yield

    return flow
