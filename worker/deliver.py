"""Webhook deliveries: one thread claims and records, many send; the state is in Postgres at every moment."""

import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy.orm import Session, sessionmaker

from jobs import ids, telemetry, webhook_claims, webhook_dispatches, webhook_records, webhooks
from jobs.database import database_now, transaction
from jobs.settings import WebhookSettings
from jobs.webhook_claims import Due
from jobs.webhook_vault import Vault
from worker import transport
from worker.network import Failure
from worker.transport import Answer

USER_AGENT: Final = "longbatch"
# Between rounds: what ends within it is recorded together. A round costs the database a few milliseconds.
_PACE_SECONDS: Final = 0.02
_RANDOM: Final = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class _Told:
    due: Due
    answer: Answer


class Deliverer:
    """Sends what is due, up to `webhooks.concurrency` exchanges at once.

    No transaction is open during an exchange. What has been sent and could not be recorded yet is recorded
    later; if this process ends before, it is sent again by another, under the same id.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        settings: WebhookSettings,
        vault: Vault,
        *,
        wake: Callable[[], None],
    ) -> None:
        """Args: wake: called when `run_once` has something to do."""
        self._sessions = sessions
        self._settings = settings
        self._vault = vault
        self._wake = wake
        self._waiting: queue.SimpleQueue[tuple[Due, float] | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[_Told] = queue.SimpleQueue()
        self._unrecorded: list[_Told] = []
        self._in_flight = 0
        self._next_round_at = 0.0
        # Daemons: an exchange takes until its deadline, and a process that ends does not wait for it.
        self._threads = [
            threading.Thread(target=self._run, name=f"send-{number}", daemon=True)
            for number in range(settings.concurrency)
        ]

    def start(self) -> None:
        """Senders wait for work."""
        for thread in self._threads:
            thread.start()

    def stop(self, *, within: float) -> None:
        """Senders end after their exchange; those of the next `within` seconds are recorded."""
        for _ in self._threads:
            self._waiting.put(None)
        until = time.monotonic() + within
        while self._in_flight and (left := until - time.monotonic()) > 0:
            try:
                self._unrecorded.append(self._finished.get(timeout=left))
                self._in_flight -= 1
            except queue.Empty:
                break
        with transaction(self._sessions) as session:
            self._record(session)

    def run_once(self) -> None:
        """What has been sent is recorded, and idle senders have what is due."""
        time.sleep(max(0.0, self._next_round_at - time.monotonic()))
        self._collect()
        free = self._settings.concurrency - self._in_flight
        with transaction(self._sessions) as session:
            self._record(session)
            claimed = webhook_claims.claim(session, self._settings, self._vault, limit=free)
        # Committed: known to nobody else now.
        self._log(self._unrecorded)
        self._unrecorded.clear()
        self._in_flight += len(claimed)
        at = time.monotonic()
        self._next_round_at = at + _PACE_SECONDS
        for due in claimed:
            self._waiting.put((due, at))

    def _collect(self) -> None:
        while True:
            try:
                self._unrecorded.append(self._finished.get_nowait())
            except queue.Empty:
                return
            self._in_flight -= 1

    def _record(self, session: Session) -> None:
        told = [(each.due, each.answer) for each in self._unrecorded]
        webhook_records.record(session, told, self._settings, _RANDOM)

    def _log(self, told: Sequence[_Told]) -> None:
        for each in told:
            is_good = webhook_records.is_delivered(each.answer)
            telemetry.logger().info(
                telemetry.WEBHOOK_DELIVERED if is_good else telemetry.WEBHOOK_FAILED,
                event_id=ids.event_id(each.due.event_id),
                type=each.due.event_type,
                try_number=each.due.attempt,
                status=each.answer.status,
                error=each.answer.error_code,
            )

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            due, claimed_at = work
            answer = _sent(due, self._settings, since=claimed_at)
            self._finished.put(_Told(due, answer))
            self._wake()


def deliver_due(
    sessions: sessionmaker[Session], settings: WebhookSettings, vault: Vault, *, limit: int = 1
) -> int:
    """Up to so many events that were due have been sent, one after another, and recorded; how many."""
    with transaction(sessions) as session:
        claimed = webhook_claims.claim(session, settings, vault, limit=limit)
    at = time.monotonic()
    told = [(due, _sent(due, settings, since=at)) for due in claimed]
    with transaction(sessions) as session:
        webhook_records.record(session, told, settings, _RANDOM)
    return len(told)


def sweep(sessions: sessionmaker[Session]) -> None:
    """What older processes left is queued, and what is too old is given up."""
    with transaction(sessions) as session:
        webhook_dispatches.adopt(session)
        webhook_dispatches.give_up(session, now=database_now(session))


def _sent(due: Due, settings: WebhookSettings, *, since: float) -> Answer:
    """As `send`; what nobody foresaw is a failed try too, so that it stands in the record."""
    began = time.monotonic()
    try:
        return send(due, settings, waited=timedelta(seconds=began - since))
    except Exception:  # noqa: BLE001  # see above
        telemetry.logger().exception(telemetry.LOOP_FAILED, loop="deliver")
        latency = timedelta(seconds=time.monotonic() - began)
        return Answer(status=None, error_code=Failure.INTERNAL_ERROR, num_bytes=0, latency=latency)


def send(due: Due, settings: WebhookSettings, *, waited: timedelta = timedelta(0)) -> Answer:
    """What came of the POST, stamped and signed anew.

    Args:
        due: the event.
        settings: of this process.
        waited: since it was claimed.
    """
    if not due.secrets:
        return Answer(status=None, error_code=Failure.SECRET_UNREADABLE, num_bytes=0, latency=timedelta(0))
    signed = webhooks.signature_headers(
        due.body, event_id=ids.event_id(due.event_id), secrets=due.secrets, now=due.claimed_at + waited
    )
    return transport.post(
        due.url,
        due.body,
        {"content-type": "application/json", "user-agent": USER_AGENT, **signed},
        allowed_hosts=settings.allowed_hosts,
        deadline=timedelta(seconds=settings.deadline_seconds),
    )
