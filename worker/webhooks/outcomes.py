"""Keep outcomes of exchanges until Postgres has them: one that cannot be recorded blocks no other."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError, StatementError
from sqlalchemy.orm import Session, sessionmaker

from jobs import ids, telemetry
from jobs.database import transaction
from jobs.settings import WebhookSettings
from jobs.webhooks import results
from jobs.webhooks.claims import ClaimedDispatch
from jobs.webhooks.faults import ROW_ERRORS
from worker.webhooks.exchange import ExchangeResult

# SQLSTATEs of a lock or statement timeout, a deadlock, a conflict: another transaction blocks these rows.
_HELD_UP: Final = frozenset({"55P03", "57014", "40P01", "40001"})
# A row that another transaction holds delays all outcomes this long at most.
_LIMIT_LOCKS: Final = text("SELECT set_config('lock_timeout', '500', true)")  # ms
_HELD_UP_SECONDS: Final = 1.0
# By then another process has claimed the event again: only the log misses this attempt.
_MAX_TRIES: Final = 10
_RANDOM: Final = random.SystemRandom()


@dataclass(slots=True)
class FinishedExchange:
    """A finished exchange.

    Attributes:
        waited: from the claim to its start.
        num_tries: attempts to record it on its own.
        not_before: monotonic seconds; recording is not tried again earlier.
    """

    dispatch: ClaimedDispatch
    result: ExchangeResult
    waited: timedelta = timedelta(0)
    num_tries: int = 0
    not_before: float = 0.0


class Outcomes:
    """Keeps outcomes until they are recorded; not thread-safe."""

    def __init__(self, sessions: sessionmaker[Session], settings: WebhookSettings) -> None:
        self._sessions = sessions
        self._settings = settings
        self._kept: list[FinishedExchange] = []

    def add(self, outcome: FinishedExchange) -> None:
        """Keep an outcome until it is recorded."""
        self._kept.append(outcome)

    def record(self) -> list[FinishedExchange]:
        """Record all kept outcomes together; on an error, bisect to isolate the bad ones.

        Returns: the recorded ones.

        Raises:
            SQLAlchemyError: the database does not answer; unrecorded outcomes are kept, so call again.
        """
        now = time.monotonic()
        recorded: list[FinishedExchange] = []
        waiting = [each for each in self._kept if each.not_before > now]
        groups = [[each for each in self._kept if each.not_before <= now]]
        try:
            while groups:
                group = groups[-1]
                error = self._try(group)
                groups.pop()
                if error is None:
                    recorded += group
                elif len(group) > 1:
                    middle = len(group) // 2
                    groups += [group[middle:], group[:middle]]
                elif self._is_kept(group[0], error):
                    waiting += group
        finally:
            self._kept = waiting + [each for group in groups for each in group]
        return recorded

    def _try(self, group: Sequence[FinishedExchange]) -> Exception | None:
        """Record these in one transaction, and return the error if one of them causes it."""
        if not group:
            return None
        try:
            with transaction(self._sessions) as session:
                session.execute(_LIMIT_LOCKS)
                pairs = [(each.dispatch, each.result) for each in group]
                results.record(session, pairs, self._settings, _RANDOM)
        except ROW_ERRORS as error:
            return error
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) in _HELD_UP:
                return error
            raise
        except DBAPIError:
            raise
        except (
            StatementError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:  # of an unforeseen value
            return error
        return None

    def _is_kept(self, outcome: FinishedExchange, error: Exception) -> bool:
        """Return True to try again later; otherwise drop the outcome and end its dispatch."""
        outcome.num_tries += 1
        if isinstance(error, OperationalError) and outcome.num_tries < _MAX_TRIES:
            outcome.not_before = time.monotonic() + _HELD_UP_SECONDS
            return True
        dispatch = outcome.dispatch
        telemetry.logger().error(
            telemetry.WEBHOOK_UNRECORDED,
            dispatch_id=str(dispatch.id),
            event_id=ids.event_id(dispatch.event_id),
            tenant_id=str(dispatch.tenant_id),
            attempt=dispatch.attempt,
            status=outcome.result.status,
            error=type(error).__name__,
        )
        if not isinstance(error, OperationalError):
            self._drop(outcome)
        return False

    def _drop(self, outcome: FinishedExchange) -> None:
        try:
            with transaction(self._sessions) as session:
                session.execute(_LIMIT_LOCKS)
                results.drop(session, outcome.dispatch, outcome.result)
        except ROW_ERRORS:
            pass  # claims end it once its sender's lease expires
