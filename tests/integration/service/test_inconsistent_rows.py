"""Reservations, deliveries and counts when something is not as expected."""

from datetime import timedelta

from pydantic import SecretStr
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from jobs import queries
from jobs.database import database_now, transaction
from jobs.models import Job, Reservation, WebhookDelivery
from jobs.settings import WebhookSettings
from jobs.states import JobState
from jobs.webhooks.vault import Vault
from support import ENGINE, claim_one, job_in, register_engine, spec, submit_one
from webhook_support import deliver_due
from worker.engine.metrics import Gauges
from worker.inference.draining import DrainMonitor


def test_a_reservation_whose_lease_has_expired_explains_no_request_in_the_engine(
    sessions: sessionmaker[Session],
) -> None:
    with transaction(sessions) as session:
        register_engine(session)
        submit_one(session, spec())
        submit_one(session, spec())
        silent, draining = claim_one(session).lease, claim_one(session).lease
        past = database_now(session) - timedelta(minutes=1)
        session.execute(update(Reservation).values(created_at=past))
        session.execute(
            update(Reservation)
            .where(Reservation.lease_id == draining.lease_id)
            .values(state="draining", draining_since=past)
        )
        session.execute(update(Job).where(Job.id == silent.job_id).values(lease_expires_at=past))
    drain_monitor = DrainMonitor(sessions, ENGINE, limit=lambda _: timedelta(hours=1), answers=lambda: False)
    for _ in range(3):
        drain_monitor.check(Gauges(active_requests=1, max_blocks=9), generating=[])
    with sessions() as session:
        assert len(session.scalars(select(Reservation.lease_id)).all()) == 2
    for _ in range(2):
        drain_monitor.check(Gauges(active_requests=0, max_blocks=9), generating=[])
    with sessions() as session:
        assert session.scalars(select(Reservation.lease_id)).all() == [silent.lease_id]


def test_a_delivery_that_breaks_before_it_is_sent_is_on_record(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        job_in(session, JobState.COMPLETED, webhook_url="https://receiver.example/hook")
    settings = WebhookSettings(secret=SecretStr("whsec_no secret"))
    vault = Vault.of(settings)
    assert vault is not None
    assert deliver_due(sessions, settings, vault) == 1
    with sessions() as session:
        assert session.scalars(select(WebhookDelivery.outcome)).all() == ["internal_error"]


def test_unfinished_jobs_are_counted_by_state(session: Session) -> None:
    submit_one(session, spec(None))
    submit_one(session, spec(100, max_tokens=10))
    assert queries.count_by_state(session) == {"blocked": 0, "preparing": 1, "queued": 1, "running": 0}
    assert queries.queued_tokens(session) == 110
