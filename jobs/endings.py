"""What every job passes once, in the transaction in which it ends, in whatever way."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from jobs import trees
from jobs.models import Job
from jobs.webhooks import outbox


def note(session: Session, ended: Sequence[Job]) -> None:
    """These jobs, in a terminal state now, are told and counted, and what waited for them goes on.

    The caller holds their rows. Rows of their summaries are locked here, behind those of jobs: so it is
    everywhere, and nobody who holds a summary's row waits for one of a job that can be held elsewhere.
    """
    outbox.append(session, ended)
    trees.advance(session, ended)
