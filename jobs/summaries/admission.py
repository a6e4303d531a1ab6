"""How a plan takes of the quotas of its tenant and its key, and waits while one of them is full.

A tenant's full quota pauses all planning for the tenant. A key's must not: other keys have room. So summaries
of one key wait in line by themselves, each looking again the later the more are before it, and one that is
planned wakes the next.
"""

from datetime import timedelta
from typing import Final

from sqlalchemy import ColumnElement, TextClause, func, select, text, update
from sqlalchemy.orm import Session

from jobs import turns
from jobs.errors import JobQuotaError, LimitError, LimitOf
from jobs.models import Summary
from jobs.models.summary import REFUSED_OF_KEY
from jobs.settings import LimitSettings
from jobs.tenants import key_quotas, quotas
from jobs.tenants.key_quotas import KeyQuota
from jobs.tenants.quotas import QuotaUsage
from jobs.turns import Turn

# How soon to check a full quota again: one sum over the unfinished jobs, without reading a text.
_PAUSE: Final = timedelta(seconds=2)
_LONGEST_PAUSE: Final = timedelta(minutes=10)
_IN_LINE: Final = text(REFUSED_OF_KEY)


def check(session: Session, summary: Summary, need: QuotaUsage, *, settings: LimitSettings) -> None:
    """Check whether the quotas have room for so much, without taking it.

    Raises:
        LimitError: one has none, or an older summary of the key waits for it.
    """
    limits = quotas.read_limits(session, summary.tenant_id, settings)
    held = quotas.current_usage(session, summary.tenant_id, limits=limits)
    quotas.check(held + need, need, limits=limits)
    of_key = key_quotas.read(session, summary.api_key_id)
    if of_key is None:
        return
    held = key_quotas.current_usage(session, of_key)
    quotas.check(held + need, need, limits=of_key.limits, of=LimitOf.KEY)
    if _num_before(session, summary):
        raise _turn_of_another(of_key, held)


def admit(session: Session, summary: Summary, need: QuotaUsage, *, settings: LimitSettings) -> None:
    """Take so much of the quotas of the summary's key and tenant.

    Raises:
        LimitError: one has no room; nothing was taken.
    """
    of_key = key_quotas.read(session, summary.api_key_id)
    if of_key is not None:
        key_quotas.admit(session, of_key, need)
    limits = quotas.read_limits(session, summary.tenant_id, settings)
    quotas.admit(session, summary.tenant_id, need, limits=limits)


def wait(session: Session, turn: Turn, summary: Summary, error: LimitError) -> None:
    """Put the summary off until the quota may have room.

    Its tenant's younger summaries wait with it, or only its key's, so that none takes its room.
    """
    session.flush()
    if error.of == LimitOf.KEY:
        pause = min(_PAUSE * (1 + _num_before(session, summary)), _LONGEST_PAUSE)
        turns.release(session, turn, after=pause)
    else:
        turns.pause_tenant(session, turn, lasting=_PAUSE)
        turns.release(session, turn)
    session.refresh(summary)


def wake_next(session: Session, summary: Summary) -> None:
    """Let the next summary that waits for the quota of this one's key be planned now."""
    if summary.api_key_id is None:
        return
    # One that a worker is just putting off looks again by itself.
    waits = Summary.lease_id.is_(None), Summary.plan_after.is_not(None)
    following = select(Summary.id).where(*_in_line(summary), *waits).order_by(Summary.id).limit(1)
    found = session.scalar(following.with_for_update(skip_locked=True, key_share=True))
    if found is not None:
        session.execute(update(Summary).where(Summary.id == found).values(plan_after=None))


def _num_before(session: Session, summary: Summary) -> int:
    """Count the older summaries of the key that wait for its quota."""
    older = select(func.count()).where(*_in_line(summary), Summary.id < summary.id)
    return session.scalar(older) or 0


def _in_line(summary: Summary) -> tuple[ColumnElement[bool] | TextClause, ...]:
    mine = Summary.tenant_id == summary.tenant_id, Summary.api_key_id == summary.api_key_id
    return *mine, _IN_LINE


def _turn_of_another(of_key: KeyQuota, held: QuotaUsage) -> LimitError:
    message = "Older summaries of this API key wait for room in its quota."
    limit = of_key.limits.max_jobs
    return JobQuotaError(message, limit=limit, remaining=limit - held.jobs, of=LimitOf.KEY)
