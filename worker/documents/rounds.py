"""The rounds of documents: extract those that wait, and remove the expired ones in short transactions."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Final

from sqlalchemy.orm import Session, sessionmaker

from jobs import documents, summaries
from jobs.database import database_now, transaction
from jobs.doorbell import SERVICE
from jobs.files.stores import make_store
from jobs.prompts.tokenizer import Tokenizer
from worker.documents.extractor import DocumentExtractor
from worker.duties import Duty, ServiceContext
from worker.rounds import repeat

# How long rows without text show that a document existed.
_DELETED_FOR: Final = timedelta(hours=1)


def duties(context: ServiceContext, tokenizer: Tokenizer) -> Iterator[Duty]:
    """List the duties of documents. Summaries may wait for an extracted one, or for one that failed."""
    settings, every = context.settings, context.settings.maintenance
    store, on_ended = make_store(settings.files), partial(context.wake, "summaries")
    work = DocumentExtractor(settings.documents, tokenizer, store, on_ended=on_ended)

    def extract() -> None:
        while not context.is_stopping() and context.runner.run_next(work):
            pass

    for number in range(settings.documents.concurrency):
        yield Duty(f"documents-{number}", extract, every.document_seconds, rung_by=(SERVICE,))
    remove = partial(prune, context.sessions, is_stopping=context.is_stopping)
    yield Duty("prune", remove, every.prune_seconds)


def prune(sessions: sessionmaker[Session], *, is_stopping: Callable[[], bool]) -> None:
    """Delete expired documents, and remove the rows of those deleted a while ago."""
    with transaction(sessions) as session:
        now = database_now(session)
    for remove in (
        partial(documents.expire, now=now, is_needed=summaries.needs_document()),
        partial(documents.prune, before=now - _DELETED_FOR),
    ):
        repeat(sessions, remove, is_stopping=is_stopping)
