"""The rounds of documents: extract those that wait, and remove the expired ones in short transactions."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Final

from sqlalchemy.orm import Session, sessionmaker

from jobs import documents, summaries
from jobs.database import database_now, transaction
from jobs.doorbell import SERVICE
from jobs.files.stores import make_store
from jobs.models.turn import EXTRACTION, WorkKind
from jobs.prompts.tokenizer import Tokenizer
from jobs.states.document import DocumentKind
from worker.documents.attachments import AttachmentStore
from worker.documents.extractor import DocumentExtractor
from worker.documents.remote import ExternalExtractor
from worker.duties import LONGEST_STEP_SECONDS, Duty, ServiceContext
from worker.rounds import repeat

# How long rows without text show that a document existed.
_DELETED_FOR: Final = timedelta(hours=1)


def duties(context: ServiceContext, tokenizer: Tokenizer) -> Iterator[Duty]:
    """List the duties of documents. Summaries may wait for an extracted one, or for one that failed."""
    settings, every = context.settings, context.settings.maintenance
    store, on_ended = make_store(settings), partial(context.wake, "summaries")
    external = ExternalExtractor.of_settings(settings.documents)
    own, remote = divide(settings.documents.extractor_formats if external else ())
    make = partial(
        DocumentExtractor,
        settings.documents,
        tokenizer,
        store,
        attachments=AttachmentStore(store, settings.limits),
        on_ended=on_ended,
    )

    def extract(work: DocumentExtractor) -> None:
        while not context.is_stopping() and context.runner.run_next(work):
            pass

    # An external extractor that hangs delays only the documents that are for it.
    limits = settings.documents
    longest = limits.extraction_seconds + limits.ocr_seconds
    lanes = [("documents", make(kind=own), limits.concurrency, longest)]
    if external is not None:
        work = make(kind=remote, external=external)
        lanes.append(("external-documents", work, limits.extractor_concurrency, limits.extractor_seconds))
    for name, work, concurrency, longest in lanes:
        for number in range(concurrency):
            yield Duty(
                f"{name}-{number}",
                partial(extract, work),
                every.document_seconds,
                rung_by=(SERVICE,),
                longest_step=longest + LONGEST_STEP_SECONDS,  # to count it, too
            )
    remove = partial(prune, context.sessions, is_stopping=context.is_stopping)
    yield Duty("prune", remove, every.prune_seconds)


def divide(formats: Collection[str]) -> tuple[WorkKind, WorkKind]:
    """Divide the extraction of documents in two: of our own readers, and of an external extractor.

    Args:
        formats: kinds of documents that the external one reads.
    """
    if not formats:
        return EXTRACTION, EXTRACTION
    listed = ", ".join(f"'{DocumentKind(each).value}'" for each in sorted(formats))
    own = replace(EXTRACTION, only=f"kind NOT IN ({listed})")
    # Its attempts take ten minutes and more: it may just be starting, with models to load.
    return own, replace(EXTRACTION, name="extract-externally", only=f"kind IN ({listed})", max_attempts=8)


def prune(sessions: sessionmaker[Session], *, is_stopping: Callable[[], bool]) -> None:
    """Delete expired documents, and remove the rows of those deleted a while ago."""
    with transaction(sessions) as session:
        now = database_now(session)
    for remove in (
        partial(documents.expire, now=now, is_needed=summaries.needs_document()),
        partial(documents.prune, before=now - _DELETED_FOR),
    ):
        repeat(sessions, remove, is_stopping=is_stopping)
