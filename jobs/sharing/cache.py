"""The cache of finished answers: a new job takes the result of an equal one that is young enough."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.database.sealed_columns import sealer_in
from jobs.models import Job
from jobs.sharing import ends


def find(
    session: Session, new: Sequence[Job], ages: Mapping[UUID, timedelta | None], *, now: datetime
) -> dict[UUID, Job]:
    """Find the results that these jobs may take, held until the transaction ends.

    Args:
        session: the caller's transaction.
        new: jobs with a digest.
        ages: the greatest age that each job accepts; None: it takes no finished result.
        now: the database's clock.

    Returns:
        The finished jobs, by the ids of the new ones.
    """
    taking = {
        job.id: job.request_digest for job in new if job.request_digest and ages.get(job.id) is not None
    }
    if not taking:
        return {}
    sources = session.scalars(ends.newest_results(set(taking.values()), sealer_in(session)))
    newest = {source.request_digest: source for source in sources}
    found: dict[UUID, Job] = {}
    for job_id, digest in taking.items():
        source, age = newest.get(digest), ages[job_id]
        if source and source.finalized_at and age is not None and source.finalized_at >= now - age:
            found[job_id] = source
    return found


def answer(session: Session, found: Mapping[UUID, Job]) -> None:
    """Complete these jobs, which this transaction has inserted, with the results that were found."""
    groups: dict[UUID, list[UUID]] = defaultdict(list)
    for job_id, source in found.items():
        groups[source.id].append(job_id)
    sources = {source.id: source for source in found.values()}
    for source_id, job_ids in groups.items():
        ends.end_as(session, sources[source_id], job_ids)
