"""Documents past their life, as a service worker removes them: short transactions, any number at once."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

from sqlalchemy.orm import Session, sessionmaker

from jobs import documents, summaries
from jobs.database import database_now, transaction

# Rows without text say for a while that a document was here.
_DELETED_FOR: Final = timedelta(hours=1)


def prune(sessions: sessionmaker[Session], *, is_stopping: Callable[[], bool]) -> None:
    """Documents whose life is over are deleted, and rows of deleted ones are gone."""
    with transaction(sessions) as session:
        now = database_now(session)
    for remove in (
        partial(documents.expire, now=now, is_needed=summaries.needs_document()),
        partial(documents.prune, before=now - _DELETED_FOR),
    ):
        while not is_stopping():
            with transaction(sessions) as session:
                if not remove(session):
                    break
