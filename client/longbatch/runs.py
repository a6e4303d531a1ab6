"""Runs of the library: paths and options in, one result for each document out, as flows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from longbatch import calls
from longbatch.backports import moment_of
from longbatch.documents import locations, results, sources
from longbatch.documents.buckets import is_bucket
from longbatch.documents.opening import Opening
from longbatch.documents.results import DocumentResult
from longbatch.documents.run import DocumentRun, Observer
from longbatch.documents.sources import SourceFile, Survey
from longbatch.documents.trees import ANSWERS, EXTRACTIONS, SUMMARIES, Kind, Trees
from longbatch.errors import LongbatchError
from longbatch.flows import Flow, work
from longbatch.objects import Answer, DocumentSummary, Extraction, Failure, Run
from longbatch.schemas import Schema, json_schema, reader_of

T = TypeVar("T")
# Four times a batch of 4, so that packing has a choice.
DEFAULT_CONCURRENCY: Final = 16
PathName = str | PathLike[str]

_LISTS: Final[Mapping[str, str]] = {
    "summary": SUMMARIES.path,
    "answers": ANSWERS.path,
    "extraction": EXTRACTIONS.path,
}


class NoDocumentsError(LongbatchError):
    """The paths hold no documents."""

    code = "no_documents"


@dataclass(frozen=True)
class RunPlan(Generic[T]):
    """What a run makes of each document.

    Attributes:
        paths: files and folders, or `s3://…` addresses.
        fields: of the request for each document.
        result_of: makes the result of an ended tree.
        objects_of: makes what the caller gets of a document's result.
        again: start a new run even if an earlier one has a result.
    """

    kind: Kind
    paths: Sequence[str]
    fields: dict[str, object]
    result_of: Callable[[SourceFile, Mapping[str, Any]], DocumentResult]
    objects_of: Callable[[DocumentResult], list[T]]
    again: bool
    follow_links: bool
    observer: Observer | None

    def sources(self) -> Iterator[SourceFile]:
        """Find the documents.

        Raises:
            NoDocumentsError: there is none.
        """
        missing = [each for each in self.paths if not is_bucket(each) and not sources.is_there(each)]
        if missing:
            raise NoDocumentsError(f"{missing[0]}: no such file or folder")
        if not self.paths:
            raise NoDocumentsError
        found = locations.find(self.paths, follow_links=self.follow_links)
        first = next(found, None)
        if first is None:
            raise NoDocumentsError(f"{', '.join(self.paths)}: {sources.NOTHING}")
        yield first
        yield from found

    def begin(self, *, concurrency: int) -> Flow[DocumentRun]:
        """Make the run, after asking whether the server is there; its shortest document starts first.

        Args:
            concurrency: documents to process at once.

        Raises:
            NoDocumentsError: there is none.
        """
        model = yield from calls.served_model()
        survey, trees = (yield from work(self._survey)), Trees(self.kind)
        num_sampled = min(survey.num_documents, concurrency)
        return DocumentRun(
            trees,
            self.fields,
            model=model,
            observer=self.observer,
            again=self.again,
            result_of=self.result_of,
            opening=Opening(trees, self.fields, survey, num_sampled),
        )

    def _survey(self) -> Survey:
        found = Survey()
        for source in self.sources():
            found.add(source)
        return found

    def ordered(self, run: DocumentRun) -> Iterator[SourceFile]:
        """Find the documents again, in the order in which they start."""
        found = self.sources()
        if run.opening is None:
            return found
        return (source for _, source in run.opening.survey.ordered(found))

    def estimate(self, run: DocumentRun) -> Flow[None]:
        """Bound how long the others wait for the first result; it goes on beside the documents.

        A failure changes only that wait, and the run itself meets the same error.
        """
        if run.opening is not None and run.opening.survey.num_documents > 1:
            with suppress(LongbatchError):
                yield from run.opening.estimate()

    def objects(self, run: DocumentRun, source: SourceFile) -> Flow[list[T]]:
        """Process one document with its attached files and return what the caller gets of them.

        Raises:
            LongbatchError: the server is away or refuses every request.
        """
        found: list[T] = []
        for outcome in (yield from run.process(source)):
            if run.fatal_error is not None and not outcome.is_completed:
                raise run.fatal_error
            found += self.objects_of((yield from outcome.fetch()))
        return found


def checked_concurrency(number: int) -> int:
    """Return how many documents to process at once.

    Raises:
        ValueError: none.
    """
    if number < 1:
        raise ValueError(f"concurrency must be at least 1 (got {number}).")
    return number


def names_of(paths: PathName | Sequence[PathName]) -> list[str]:
    """Return paths as texts."""
    given = [paths] if isinstance(paths, str | PathLike) else [*paths]
    return [str(Path(each)) if isinstance(each, PathLike) else each for each in given]


def summaries(
    paths: PathName | Sequence[PathName],
    fields: Mapping[str, Any],
    *,
    again: bool,
    follow_links: bool,
    observer: Observer | None,
) -> RunPlan[DocumentSummary]:
    """Plan a summary of each document."""
    return RunPlan(
        SUMMARIES,
        names_of(paths),
        dict(fields),
        results.of_summary,
        _summaries,
        again,
        follow_links,
        observer,
    )


def answers(
    paths: PathName | Sequence[PathName],
    questions: str | Sequence[str],
    fields: Mapping[str, Any],
    *,
    again: bool,
    follow_links: bool,
    observer: Observer | None,
) -> RunPlan[Answer]:
    """Plan the answers of each document to each question."""
    asked = [questions] if isinstance(questions, str) else [*dict.fromkeys(questions)]
    if not asked:
        raise ValueError("questions must name at least one question.")

    def objects_of(result: DocumentResult) -> list[Answer]:
        return _answers(result, asked)

    whole = {**fields, "questions": asked}
    return RunPlan(
        ANSWERS, names_of(paths), whole, results.of_answers, objects_of, again, follow_links, observer
    )


def extractions(
    paths: PathName | Sequence[PathName],
    schema: "type[Any] | Schema",
    fields: Mapping[str, Any],
    *,
    again: bool,
    follow_links: bool,
    observer: Observer | None,
) -> RunPlan[Extraction[Any]]:
    """Plan the extraction of a schema's fields from each document."""
    read = reader_of(schema)

    def objects_of(result: DocumentResult) -> list[Extraction[Any]]:
        return [_extraction(result, read)]

    whole = {**fields, "schema": json_schema(schema)}
    return RunPlan(
        EXTRACTIONS, names_of(paths), whole, results.of_extraction, objects_of, again, follow_links, observer
    )


def run_pages(kind: str, after: str | None) -> Flow[tuple[list[Run], str | None]]:
    """Fetch a page of runs of one kind, newest first, and the id after which the next page begins."""
    found = yield from calls.page(_LISTS[kind], {"after": after})
    return [_run(kind, each) for each in found["data"]], found["last_id"] if found["has_more"] else None


def run_kinds(kind: str | None) -> list[str]:
    """List the kinds of runs to fetch.

    Raises:
        ValueError: there is no such kind.
    """
    if kind is not None and kind not in _LISTS:
        raise ValueError(f"kind must be one of {', '.join(_LISTS)} (got {kind!r}).")
    return [kind] if kind else [*_LISTS]


def _run(kind: str, found: Mapping[str, Any]) -> Run:
    documents = found.get("documents") or [found["document"]]
    created_at = moment_of(found["created_at"])
    return Run(
        found["id"], kind, found["state"], tuple(documents), created_at, Failure.of(found["error"]), found
    )


def _summaries(result: DocumentResult) -> list[DocumentSummary]:
    summary = DocumentSummary(
        result.source.shown,
        result.summary,
        _warnings(result),
        quotes=result.quotes,
        chunks=result.chunks,
        usage=result.usage,
        error=Failure.of(result.error),
        id=result.tree_id,
    )
    return [summary]


def _answers(result: DocumentResult, questions: Sequence[str]) -> list[Answer]:
    """Make an answer for each question, also of a document that failed."""
    path, warnings = result.source.shown, _warnings(result)
    if result.error is not None:
        failure = Failure.of(result.error)
        return [
            Answer(path, each, None, warnings=warnings, error=failure, id=result.tree_id)
            for each in questions
        ]
    return [
        Answer(
            path,
            each["question"],
            each["answer"],
            found=each["found"],
            quote=each["quote"],
            quote_in_text=each["quote_in_text"],
            page=each["pages"][0] if each["pages"] else None,
            pages=tuple(each["pages"]) if each["pages"] else None,
            start=each["start"],
            end=each["end"],
            warnings=(*warnings, *map(results.gap_text, each["gaps"])),
            error=Failure.of(each["error"]),
            id=result.tree_id,
        )
        for each in result.answers
    ]


def _extraction(result: DocumentResult, read: Callable[[Mapping[str, Any]], Any]) -> Extraction[Any]:
    found = result.extraction or {}
    fault, value = found.get("fault"), None
    if found and fault is None and found["values"] is not None:
        try:
            value = read(found["values"])
        except ValueError as error:
            fault = str(error)
        except Exception as error:
            raise LongbatchError(
                f"{result.source.shown}: the model failed on its values: {error!r}"
            ) from error
    return Extraction(
        result.source.shown,
        value,
        values=found.get("values"),
        fault=fault,
        fields=tuple(found.get("fields") or ()),
        warnings=_warnings(result),
        usage=result.usage,
        error=Failure.of(result.error),
        id=result.tree_id,
    )


def _warnings(result: DocumentResult) -> tuple[str, ...]:
    gaps = [*result.gaps, *((result.extraction or {}).get("gaps") or ())]
    return (*(str(each["message"]) for each in result.warnings), *map(results.gap_text, gaps))
