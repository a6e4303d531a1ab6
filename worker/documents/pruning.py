"""The removal of expired documents: short transactions, safe to run in several workers at once."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

from sqlalchemy.orm import Session, sessionmaker

from jobs import documents, summaries
from jobs.database import database_now, transaction
from worker.rounds import repeat

# How long rows without text show that a document existed.
_DELETED_FOR: Final = timedelta(hours=1)


def prune(sessions: sessionmaker[Session], *, is_stopping: Callable[[], bool]) -> None:
    """Delete expired documents, and remove the rows of those deleted a while ago."""
    with transaction(sessions) as session:
        now = database_now(session)
    for remove in (
        partial(documents.expire, now=now, is_needed=summaries.needs_document()),
        partial(documents.prune, before=now - _DELETED_FOR),
    ):
        repeat(sessions, remove, is_stopping=is_stopping)
