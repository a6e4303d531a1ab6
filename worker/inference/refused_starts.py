"""Queued jobs that the database refuses to start: set aside for a while, failed once others do start."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from jobs import lifecycle, starting, telemetry
from jobs.database import transaction
from jobs.scheduling import engine_load
from jobs.settings import Settings
from jobs.starting import Claim
from worker.rounds import FailingRows

# The tick waits for nobody's row or tree; what is locked is failed after a later tick.
_WAIT_FOR_NOTHING: Final = text("SET LOCAL lock_timeout = '1ms'")
_MAX_SUSPECTS: Final = 1000


class RefusedStarts:
    """The jobs that one refused statement stopped all claims for. Used by the ticking thread alone.

    A job's values are to blame only if other jobs start: then it fails, as it would wherever it is tried.
    Otherwise (a missing privilege, a trigger of the operator's) it stays queued, and is tried again later and
    later.
    """

    def __init__(self, settings: Settings, sessions: sessionmaker[Session]) -> None:
        self._engine_name = settings.engine.name
        self._lease = timedelta(seconds=settings.jobs.lease_seconds)
        self._sessions = sessions
        self._aside = FailingRows("claim")
        self._suspects: dict[UUID, Claim] = {}

    def leave_out(self, session: Session) -> None:
        """Start no job in this session that is set aside now."""
        starting.leave_out(session, self._aside.ids())

    def set_aside(self, claims: Sequence[Claim]) -> bool:
        """Set aside those of these jobs that the database refuses to start.

        Returns:
            False if there is none: another claim would fail again.
        """
        refused = self._find(claims)
        for each, error in refused:
            self._aside.skip(each.lease.job_id, error)
            if isinstance(error, DataError | IntegrityError) and len(self._suspects) < _MAX_SUSPECTS:
                self._suspects[each.lease.job_id] = each
        return bool(refused)

    def fail_all(self) -> None:
        """Fail the jobs whose values the database refuses, as others have just started."""
        if not self._suspects:
            return
        try:
            refused = [each.lease.job_id for each, _ in self._find(list(self._suspects.values()))]
            with transaction(self._sessions) as session:
                session.execute(_WAIT_FOR_NOTHING)
                lifecycle.fail_unstartable(session, refused)
            self._suspects.clear()
        except SQLAlchemyError as error:  # tried again with the next start
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="claim", error=type(error).__name__)

    def _find(self, claims: Sequence[Claim]) -> list[tuple[Claim, BaseException]]:
        with transaction(self._sessions) as session:
            engine_load.lock(session, self._engine_name)
            return starting.find_refused(
                session, claims, lease_duration=self._lease, engine_name=self._engine_name
            )
