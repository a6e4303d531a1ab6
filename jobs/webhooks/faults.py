"""End rows that no claim and no sweep can change, one by one, so that they block no other.

A claim changes many rows in one statement. A row that breaks a constraint, or whose numbers are exhausted,
fails the whole statement, for all tenants, every time.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from sqlalchemy import delete, select
from sqlalchemy.exc import DataError, IntegrityError, InternalError
from sqlalchemy.orm import Session

from jobs import ids, telemetry
from jobs.models.webhook import WebhookEvent
from jobs.models.webhook_delivery import WebhookDispatch
from jobs.settings import WebhookSettings
from jobs.webhooks import claims, destinations, fairness, fanout
from jobs.webhooks.fairness import Slots

# Postgres errors about values, constraints and triggers of a row; all others are about locks and connections.
ROW_ERRORS: Final = (DataError, IntegrityError, InternalError)


def fail_unclaimable(session: Session, settings: WebhookSettings, slots: Slots) -> int:
    """Try each row of the next claim alone, and end those that cannot be changed.

    Returns: how many were ended.
    """
    now, lost = claims.lock(session)
    take_back = partial(claims.take_back, session)
    stuck = [each for each in lost if not _can(session, partial(take_back, [each]))]
    new = destinations.schedule_new(session, (), now=now)
    mark = partial(destinations.update_due_times, session, visited={})
    stuck += [each.id for each in new if not _can(session, partial(mark, [each]))]
    chosen = fairness.choose(session, settings, slots, now=now).dispatches
    take = partial(claims.take, session, settings=settings, now=now)
    stuck += [each for each in chosen if not _can(session, partial(take, [each]))]
    for dispatch_id in dict.fromkeys(stuck):
        _end(session, dispatch_id)
    return len(stuck)


def fail_one_by_one(session: Session, old: Sequence[UUID]) -> None:
    """End each of these dispatches on its own."""
    for dispatch_id in old:
        _end(session, dispatch_id)


def adopt_one_by_one(session: Session, left: Sequence[WebhookEvent]) -> None:
    """Queue each of these events on its own; remove one that cannot be changed."""
    for event_id in [event.id for event in left]:
        try:
            with session.begin_nested():
                fanout.adopt(session, [session.get_one(WebhookEvent, event_id)])
        except ROW_ERRORS:
            telemetry.logger().error(
                telemetry.WEBHOOK_GIVEN_UP, event_id=ids.event_id(event_id), reason="unchangeable"
            )
            session.execute(
                delete(WebhookEvent).where(WebhookEvent.id == event_id),
                execution_options={"synchronize_session": False},
            )


def _can(session: Session, change: Callable[[], object]) -> bool:
    """Try the change, undo it, and return True if it succeeded."""
    trial = session.begin_nested()
    try:
        change()
    except ROW_ERRORS:
        return False
    finally:
        trial.rollback()
    return True


def _end(session: Session, dispatch_id: UUID) -> None:
    """Fail the dispatch; remove it if even that breaks a constraint."""
    which = WebhookDispatch.id == dispatch_id
    columns = select(WebhookDispatch.event_id, WebhookDispatch.tenant_id)
    event_id, tenant_id = session.execute(columns.where(which)).one()
    claims.log_given_up(dispatch_id, event_id, tenant_id, reason="unchangeable")
    try:
        with session.begin_nested():
            fanout.give_up(session, [dispatch_id])
    except ROW_ERRORS:
        remove = delete(WebhookDispatch).where(which)
        session.execute(remove, execution_options={"synchronize_session": False})
