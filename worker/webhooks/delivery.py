"""Deliver webhooks: one thread claims and records, another sends; Postgres always has the state."""

import queue
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session, sessionmaker

from jobs import ids, telemetry, webhooks
from jobs.database import database_now, transaction
from jobs.doorbell import EVENTS, SERVICE
from jobs.settings import WebhookSettings
from jobs.traces.span import Span
from jobs.webhooks import claims, delivery_spans, destinations, fanout, faults, results, secrets
from jobs.webhooks.claims import ClaimedDispatch
from jobs.webhooks.fairness import Slots
from jobs.webhooks.vault import Vault
from worker.duties import Duty, ServiceContext
from worker.rounds import do_each, repeat
from worker.webhooks import exchange
from worker.webhooks.connect import Failure
from worker.webhooks.exchange import ExchangeResult
from worker.webhooks.outcomes import FinishedExchange, Outcomes
from worker.webhooks.proxy import proxy_of
from worker.webhooks.senders import Senders

USER_AGENT: Final = "longbatch"
# Time between rounds: exchanges that end within it are recorded together. A round costs the database a few
# milliseconds.
_PACE_SECONDS: Final = 0.02
_IDLE: Final = timedelta(hours=1)  # a destination that no request names for so long no longer counts
_FIRST: Final = UUID(int=0)


class Deliverer:
    """Sends due events, up to `webhooks.concurrency` exchanges at once.

    No transaction is open during an exchange. An outcome that cannot be recorded yet is recorded later; if
    this process ends first, another process sends the event again under the same id.
    """

    def __init__(
        self,
        sessions: sessionmaker[Session],
        settings: WebhookSettings,
        vault: Vault,
        *,
        wake: Callable[[], None],
        pause: Callable[[float], object] = time.sleep,
        trace: Callable[[Span], object] | None = None,
    ) -> None:
        """Set up without starting.

        Args:
            sessions: opens a session.
            settings: of this process.
            vault: decrypts the signing secrets.
            wake: called when `run_once` has something to do.
            pause: waits so many seconds.
            trace: takes the spans of attempts, and returns at once; None: traces are off.
        """
        self._sessions = sessions
        self._settings = settings
        self._vault = vault
        self._senders = Senders(self._deliver, on_ended=wake)
        self._outcomes = Outcomes(sessions, settings)
        self._wake = wake
        self._pause = pause
        self._trace = trace
        self._in_flight: Counter[UUID] = Counter()  # by tenant
        self._freed: set[UUID] = set()  # destinations freed since the last claim
        self._next_round_at = 0.0

    def start(self) -> None:
        """Start the senders."""
        self._senders.start()

    def stop(self, *, within: float) -> None:
        """Record exchanges that end `within` seconds, and abort the others."""
        until = time.monotonic() + within
        while self._in_flight.total() and (left := until - time.monotonic()) > 0:
            try:
                self._end(self._senders.ended.get(timeout=left))
            except queue.Empty:
                break
        self._senders.stop()
        self._collect()
        self._trace_all(self._outcomes.record())

    def run_once(self) -> None:
        """Record finished exchanges, then claim due events for the idle senders."""
        self._pause(max(0.0, self._next_round_at - time.monotonic()))
        self._collect()
        ended = self._outcomes.record()
        self._log(ended)
        self._trace_all(ended)
        claimed = self._claim()
        # Committed: no other process takes them. Steps that may fail come last.
        self._in_flight.update(dispatch.tenant_id for dispatch in claimed)
        at = time.monotonic()
        if claimed or ended:  # a round without work delays none
            self._next_round_at = at + _PACE_SECONDS
        if claimed:
            self._senders.hand_in((dispatch, at) for dispatch in claimed)
            self._wake()  # one claim considers a limited number of destinations: more may be due

    def _claim(self) -> list[ClaimedDispatch]:
        slots = Slots(self._settings.concurrency - self._in_flight.total(), self._in_flight)
        try:
            with transaction(self._sessions) as session:
                claimed = claims.claim(session, self._settings, self._vault, slots, freed=self._freed)
        except faults.ROW_ERRORS:
            with transaction(self._sessions) as session:
                num_ended = faults.fail_unclaimable(session, self._settings, slots)
            if not num_ended:
                raise
            return []  # the next round claims the others
        self._freed.clear()
        return claimed

    def _collect(self) -> None:
        while True:
            try:
                self._end(self._senders.ended.get_nowait())
            except queue.Empty:
                return

    def _end(self, outcome: FinishedExchange) -> None:
        self._outcomes.add(outcome)
        self._freed.add(outcome.dispatch.destination_id)
        self._in_flight -= Counter([outcome.dispatch.tenant_id])

    def _log(self, outcomes: Sequence[FinishedExchange]) -> None:
        for each in outcomes:
            is_good = results.is_delivered(each.result)
            telemetry.logger().info(
                telemetry.WEBHOOK_DELIVERED if is_good else telemetry.WEBHOOK_FAILED,
                event_id=ids.event_id(each.dispatch.event_id),
                type=each.dispatch.event_type,
                attempt=each.dispatch.attempt,
                status=each.result.status,
                error=each.result.error_code,
                **telemetry.in_trace(each.dispatch.traceparent),
            )

    def _trace_all(self, outcomes: Sequence[FinishedExchange]) -> None:
        for each in outcomes if self._trace is not None else ():
            try:
                span = delivery_spans.span_of(each.dispatch, each.result, waited=each.waited)
            except Exception as error:  # noqa: BLE001  # an odd URL must not stop deliveries
                telemetry.log_failure(telemetry.ROW_FAILED, error, loop="traces")
                continue
            if span is not None and self._trace is not None:
                self._trace(span)

    async def _deliver(self, work: tuple[ClaimedDispatch, float]) -> FinishedExchange:
        dispatch, claimed_at = work
        waited = timedelta(seconds=time.monotonic() - claimed_at)
        result = await deliver(dispatch, self._settings, since=claimed_at)
        return FinishedExchange(dispatch, result, waited)


def duties(context: ServiceContext, deliverer: Deliverer | None, vault: Vault | None) -> Iterator[Duty]:
    """List the duties of webhooks. Without a vault nothing is delivered."""
    sessions, every, is_stopping = context.sessions, context.settings.maintenance, context.is_stopping
    yield Duty("prune", partial(sweep, sessions, is_stopping=is_stopping), every.prune_seconds)
    if deliverer and vault:
        yield Duty("deliver", deliverer.run_once, every.deliver_seconds, rung_by=(SERVICE, EVENTS))
        reseal = partial(reseal_secrets, sessions, vault, is_stopping=is_stopping)
        yield Duty("prune", reseal, every.prune_seconds)


def sweep(sessions: sessionmaker[Session], *, is_stopping: Callable[[], bool] = lambda: False) -> None:
    """Queue events of older releases, give up old ones, and remove idle destinations."""
    steps = (_adopt, _give_up_old, _find_unscheduled, _remove_idle)
    do_each([partial(step, sessions, is_stopping) for step in steps])


def _adopt(sessions: sessionmaker[Session], is_stopping: Callable[[], bool]) -> None:
    is_more = True
    while is_more and not is_stopping():
        try:
            with transaction(sessions) as session:
                left = fanout.find_unadopted(session)
                fanout.adopt(session, left)
        except faults.ROW_ERRORS:
            with transaction(sessions) as session:
                left = fanout.find_unadopted(session)
                faults.adopt_one_by_one(session, left)
        is_more = bool(left)


def _give_up_old(sessions: sessionmaker[Session], is_stopping: Callable[[], bool]) -> None:
    is_more = True
    while is_more and not is_stopping():
        try:
            with transaction(sessions) as session:
                old = fanout.find_old(session, now=database_now(session))
                fanout.give_up(session, old)
        except faults.ROW_ERRORS:
            with transaction(sessions) as session:
                old = fanout.find_old(session, now=database_now(session))
                faults.fail_one_by_one(session, old)
        is_more = bool(old)


def _find_unscheduled(sessions: sessionmaker[Session], is_stopping: Callable[[], bool]) -> None:
    after: UUID | None = _FIRST
    while after is not None and not is_stopping():
        with transaction(sessions) as session:
            after = destinations.find_unscheduled(session, after=after)


def _remove_idle(sessions: sessionmaker[Session], is_stopping: Callable[[], bool]) -> None:
    def step(session: Session) -> int:
        return destinations.remove_idle(session, before=database_now(session) - _IDLE)

    repeat(sessions, step, is_stopping=is_stopping)


def reseal_secrets(
    sessions: sessionmaker[Session], vault: Vault, *, is_stopping: Callable[[], bool] = lambda: False
) -> None:
    """Reseal secrets that an earlier release sealed under a key callers can derive."""
    repeat(sessions, lambda session: secrets.reseal(session, vault), is_stopping=is_stopping)


async def deliver(dispatch: ClaimedDispatch, settings: WebhookSettings, *, since: float) -> ExchangeResult:
    """Send the event; record an unforeseen error as a failed attempt too.

    Args:
        dispatch: the event and where it goes.
        settings: of this process.
        since: when it was claimed, by the monotonic clock.
    """
    began = time.monotonic()
    try:
        return await send(dispatch, settings, waited=timedelta(seconds=began - since))
    except Exception:  # noqa: BLE001  # see above
        with suppress(Exception):  # a log that cannot be written must not stop deliveries
            telemetry.logger().exception(telemetry.LOOP_FAILED, loop="deliver")
        latency = timedelta(seconds=time.monotonic() - began)
        return ExchangeResult(status=None, error_code=Failure.INTERNAL_ERROR, num_bytes=0, latency=latency)


async def send(
    dispatch: ClaimedDispatch, settings: WebhookSettings, *, waited: timedelta = timedelta(0)
) -> ExchangeResult:
    """Stamp, sign and POST the event.

    Args:
        dispatch: the event and where it goes.
        settings: of this process.
        waited: time since it was claimed.
    """
    if not dispatch.secrets:
        return ExchangeResult(
            status=None, error_code=Failure.SECRET_UNREADABLE, num_bytes=0, latency=timedelta(0)
        )
    signed = webhooks.signature_headers(
        dispatch.body,
        event_id=ids.event_id(dispatch.event_id),
        secrets=dispatch.secrets,
        now=dispatch.claimed_at + waited,
    )
    return await exchange.post(
        dispatch.url,
        dispatch.body,
        {"content-type": "application/json", "user-agent": USER_AGENT, **signed, **_traced(dispatch)},
        allowed_hosts=settings.allowed_hosts,
        deadline=timedelta(seconds=settings.deadline_seconds),
        proxy=proxy_of(settings),
    )


def _traced(dispatch: ClaimedDispatch) -> dict[str, str]:
    """Return the header by which the receiver continues the trace, if there is one."""
    context = delivery_spans.context_of(dispatch)
    return {} if context is None else {"traceparent": str(context)}
