"""What happens once to every job, in the transaction that ends it, however it ends."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from jobs import trees
from jobs.models import Job
from jobs.webhooks import outbox


def note(session: Session, ended: Sequence[Job]) -> None:
    """Publish and count the end of these jobs, and advance what waited for them.

    The caller holds their rows. This locks the rows of their summaries after those of the jobs. All code
    keeps that order, and no transaction that holds a summary's row waits for a job row that another can hold.
    """
    outbox.append(session, ended)
    trees.advance(session, ended)
