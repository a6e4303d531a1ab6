"""Plain jobs, stored in one message: what most submissions are."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from jobs import job_rows
from jobs.database import direct
from jobs.database.sealed_columns import sealer_in
from jobs.engines.registry import RegisteredEngines
from jobs.models.new_job import NewJob
from jobs.prompts import store
from jobs.sealing.content import PLAIN
from jobs.states import TERMINAL
from jobs.submission import Submitter, new_jobs
from jobs.submission.job_specs import JobSpec
from jobs.tenants import quotas


class NotAtOnceError(Exception):
    """The database does not store these jobs at once; `submit_set` does, or tells why it cannot."""


def submit_at_once(
    session: Session, specs: Sequence[JobSpec], by: Submitter, registered: RegisteredEngines
) -> list[NewJob] | None:
    """Insert jobs as `submit_set` does, and commit, in one message.

    Args:
        session: a transaction of its own, that does nothing else.
        specs: the jobs.
        by: their owner, whose quota can be foreseen.
        registered: what engines could hold, and the clock, a moment ago. Jobs that did not fit then are asked
            about anew; those that did, and do not any more, are found by `fitting.reject_misfits`.

    Returns:
        None: not all of them can be stored like that. Nothing was sent.

    Raises:
        NotAtOnceError: the quota has changed, or the database refuses some, or waited for others too long;
            nothing is stored.
    """
    now = registered.now()
    if now is None or by.foresight is None or sealer_in(session).seals or not all(map(_is_plain, specs)):
        return None
    texts = {spec.text.sha256: spec.text for spec in sorted(specs, key=lambda spec: spec.text.sha256)}
    nameless = dict.fromkeys(texts, _NO_TEXT)
    jobs = new_jobs(specs, by, registered.capacities, text_ids=nameless, now=now)
    # What is there already counts, too: that much less is left of an allowance, until it is given anew.
    more = quotas.taken_by(jobs, sum(text.stored_bytes(PLAIN) for text in texts.values()))
    taking = by.foresight.taking(more)
    if not taking or any(job.state in TERMINAL for job in jobs):
        return None
    inserting = job_rows.insertion_by_text(jobs, [spec.text.sha256 for spec in specs])
    queries = [direct.KEEP_PLANS, store.insertion(texts, by.tenant_id), *taking, inserting]
    try:
        _, _, *taken, inserted = direct.fetch_all_and_commit(session, queries)
    except DBAPIError as error:
        if error.connection_invalidated:
            raise
        raise NotAtOnceError from error
    by.foresight.took(more, taken)
    text_ids: dict[UUID, UUID] = dict(inserted)
    for job in jobs:
        job.text_id = text_ids[job.id]
    return jobs


_NO_TEXT: Final = UUID(int=0)


def _is_plain(spec: JobSpec) -> bool:
    """Return True for a job of which nothing but its own text is stored."""
    besides = spec.sharing, spec.guide, spec.tensors, spec.response
    return spec.text.counted is not None and all(each is None for each in besides)
