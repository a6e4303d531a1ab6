"""What came of exchanges, until Postgres has it: one outcome that cannot be recorded holds up no other."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, OperationalError, StatementError
from sqlalchemy.orm import Session, sessionmaker

from jobs import ids, telemetry
from jobs.database import transaction
from jobs.settings import WebhookSettings
from jobs.webhooks import results
from jobs.webhooks.claims import Due
from jobs.webhooks.faults import ROW_ERRORS
from worker.webhooks.exchange import Answer

# SQLSTATEs of a lock or statement timeout, a deadlock, a conflict: another transaction holds up these rows.
_HELD_UP: Final = frozenset({"55P03", "57014", "40P01", "40001"})
# So long a row that another transaction holds delays all outcomes.
_LIMIT_LOCKS: Final = text("SELECT set_config('lock_timeout', '500', true)")  # ms
_HELD_UP_SECONDS: Final = 1.0
# After it another process has taken the event up: only the log misses this try.
_MAX_TRIES: Final = 10
_RANDOM: Final = random.SystemRandom()


@dataclass(slots=True)
class Told:
    """An exchange that has ended.

    Attributes:
        num_tries: how often recording it was tried alone.
        not_before: monotonic seconds; it is not tried again earlier.
    """

    due: Due
    answer: Answer
    num_tries: int = 0
    not_before: float = 0.0


class Outcomes:
    """Keeps outcomes until they are recorded; one thread uses it."""

    def __init__(self, sessions: sessionmaker[Session], settings: WebhookSettings) -> None:
        self._sessions = sessions
        self._settings = settings
        self._kept: list[Told] = []

    def add(self, told: Told) -> None:
        """Keep an outcome until it is recorded."""
        self._kept.append(told)

    def record(self) -> list[Told]:
        """Record what is kept: all together, or what remains of it after halving away what cannot be.

        Returns: those that are recorded.

        Raises:
            SQLAlchemyError: the database does not answer; what is not recorded yet is kept.
        """
        now = time.monotonic()
        recorded: list[Told] = []
        waiting = [each for each in self._kept if each.not_before > now]
        parts = [[each for each in self._kept if each.not_before <= now]]
        try:
            while parts:
                part = parts[-1]
                error = self._try(part)
                parts.pop()
                if error is None:
                    recorded += part
                elif len(part) > 1:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
                elif self._is_kept(part[0], error):
                    waiting += part
        finally:
            self._kept = waiting + [each for part in parts for each in part]
        return recorded

    def _try(self, part: Sequence[Told]) -> Exception | None:
        """Record these in one transaction; what is wrong with one of them, if anything is."""
        if not part:
            return None
        try:
            with transaction(self._sessions) as session:
                session.execute(_LIMIT_LOCKS)
                told = [(each.due, each.answer) for each in part]
                results.record(session, told, self._settings, _RANDOM)
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
        ) as error:  # of a value nobody foresaw
            return error
        return None

    def _is_kept(self, told: Told, error: Exception) -> bool:
        """Whether to try again later; else the outcome is dropped and its dispatch has ended."""
        told.num_tries += 1
        if isinstance(error, OperationalError) and told.num_tries < _MAX_TRIES:
            told.not_before = time.monotonic() + _HELD_UP_SECONDS
            return True
        due = told.due
        telemetry.logger().error(
            telemetry.WEBHOOK_UNRECORDED,
            dispatch_id=str(due.id),
            event_id=ids.event_id(due.event_id),
            tenant_id=str(due.tenant_id),
            try_number=due.attempt,
            status=told.answer.status,
            error=type(error).__name__,
        )
        if not isinstance(error, OperationalError):
            self._drop(told)
        return False

    def _drop(self, told: Told) -> None:
        try:
            with transaction(self._sessions) as session:
                session.execute(_LIMIT_LOCKS)
                results.drop(session, told.due, told.answer)
        except ROW_ERRORS:
            pass  # claims end it once its sender's time is over
