"""How equal jobs come in: the first becomes the leader, the others wait for it as its twins."""

import json
from collections.abc import Collection, Sequence
from hashlib import sha256
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs import job_rows
from jobs.database import statements
from jobs.database.statements import Statement
from jobs.models import Address, Job


def digest_of(job: Job, asked_sha256: bytes) -> bytes | None:
    """Compute what equal requests of a tenant have in common: all that their answer depends on.

    Args:
        job: the request.
        asked_sha256: of the canonical prompt, which includes the variables of its template, and of the form
            that the answer must have.

    Returns:
        None if the answer is left to chance: the job has a temperature and no seed.
    """
    if job.sampling.get("temperature") and job.sampling.get("seed") is None:
        return None
    address = str(Address(job.model, job.adapter))
    asked = json.dumps([address, job.max_tokens, job.sampling], sort_keys=True)
    return sha256(job.tenant_id.bytes + asked_sha256 + asked.encode()).digest()


def insert(session: Session, new: Sequence[Job], *, answered: Collection[UUID] = ()) -> None:
    """Insert jobs; one that has an unfinished equal waits for it, `blocked`.

    Args:
        session: the caller's transaction.
        new: jobs of one tenant.
        answered: those for which the caller has a result already; they wait for it.
    """
    rest = [job for job in new if job.id not in answered]
    leading = job_rows.insert_leaders(session, _first_of_each(rest)) if rest else set()
    if twins := [job for job in rest if job.id not in leading]:
        _hold_leaders(session, twins)
    if waiting := [job for job in new if job.id not in leading]:
        job_rows.insert_twins(session, waiting)


def _first_of_each(new: Sequence[Job]) -> list[Job]:
    """Pick the jobs that may run: of equal ones the first.

    They come in one order in all transactions, as each waits for others that insert the same digest.
    """
    first: dict[bytes, Job] = {}
    for job in new:
        if job.request_digest is not None:
            first.setdefault(job.request_digest, job)
    leaders = [job for job in new if job.request_digest is None or first[job.request_digest] is job]
    return sorted(leaders, key=lambda job: job.request_digest or b"")


def _hold_leaders(session: Session, twins: Sequence[Job]) -> None:
    """Hold the leaders of these jobs until this transaction ends; their ends then see that they have twins.

    One that has just ended leaves its twins to the next round of `ends.settle`.
    """
    given = {
        "digests": [job.request_digest for job in twins],
        "ranks": [job.rank for job in twins],
        "deadlines": [job.expires_at for job in twins],
    }
    statements.fetch(session, _HOLD_LEADERS, given)


# A leader gets the best rank of its twins, and the highest if one of them has to be done earlier than itself.
_HOLD_LEADERS: Final = Statement("""
    WITH given AS (
        SELECT digest, max(rank) AS rank, min(deadline) AS deadline
        FROM unnest(%(digests)s::bytea[], %(ranks)s::smallint[], %(deadlines)s::timestamptz[])
            AS given(digest, rank, deadline)
        GROUP BY digest
    ), held AS (
        SELECT jobs.id, CAST(CASE WHEN given.deadline < coalesce(jobs.expires_at, 'infinity') THEN 1
            ELSE greatest(jobs.rank, given.rank) END AS smallint) AS rank
        FROM given JOIN jobs ON jobs.request_digest = given.digest
            AND jobs.state IN ('preparing', 'queued', 'running')
        ORDER BY jobs.id FOR NO KEY UPDATE OF jobs
    )
    UPDATE jobs SET has_twins = true, rank = held.rank FROM held
    WHERE jobs.id = held.id AND jobs.state IN ('preparing', 'queued', 'running')
        AND (NOT jobs.has_twins OR jobs.rank < held.rank)
""")
