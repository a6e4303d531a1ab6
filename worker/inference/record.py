"""Recording the end of a run: the outcome under the fence, then the end of its reservation."""

import threading
import time
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker
from structlog.typing import FilteringBoundLogger

from jobs import doorbell, telemetry
from jobs.checkpoints import Output
from jobs.database import transaction
from jobs.engines import reservations
from jobs.errors import EngineError, LongbatchError
from jobs.scheduling.claims import Claim
from jobs.settings import Settings
from jobs.states import TERMINAL, JobState
from worker.doorbell import Ring
from worker.engine.stream import Stream
from worker.inference.answer import Answer
from worker.inference.follow import wait_for_end
from worker.inference.leases import LeaseKeeper, RunningJob
from worker.inference.live_output import OutputPublisher
from worker.inference.outcome import Failed, Finished, Outcome, RunEnd, Stopped, write_outcome
from worker.inference.refill import PendingSends
from worker.inference.text_answer import TextAnswer

_LINGER_SECONDS: Final = 10.0
_RECORD_RETRY_SECONDS: Final = 1.0
_NOTHING: Final = Output(text="", packed_ids=b"", num_tokens=0)


class UnrecordableError(LongbatchError):
    """The answer cannot be stored."""

    code = "internal_error"


class NoVisibleTextError(LongbatchError):
    """The model only thought: max_tokens ended its answer before any visible text."""

    code = "no_visible_text"


_UNRECORDABLE: Final = Failed(UnrecordableError())


@dataclass(slots=True)
class JobRun:
    """One run of one job.

    Attributes:
        claim: the job's claim.
        job: what it shares with the keeper of the leases.
        answer: its output so far.
        publisher: publishes that output.
        log: a logger bound to the job.
        stream: its last stream; None if nothing was sent.
    """

    claim: Claim
    job: RunningJob
    answer: Answer | TextAnswer
    publisher: OutputPublisher
    log: FilteringBoundLogger
    stream: Stream | None = None


@dataclass(frozen=True)
class Recorder:
    """The dependencies for recording the ends of runs; shared by all slots.

    Attributes:
        stopping: set when the process is shutting down.
    """

    settings: Settings
    sessions: sessionmaker[Session]
    keeper: LeaseKeeper
    ring: Ring
    pending_sends: PendingSends
    stopping: threading.Event

    def end(self, run: JobRun, end: RunEnd) -> None:
        """Record the end of a run. A late confirmation still deletes its draining reservation."""
        self.pending_sends.wait()
        try:
            run.publisher.collect()
            state = self._record(run, end)
            run.publisher.end(is_final=state in TERMINAL)
            run.log.info(
                _event(state, end.outcome),
                state=state,
                outcome=type(end.outcome).__name__,
                completion_tokens=run.answer.num_tokens,
                **_error_fields(end.outcome),
            )
            # A webhook may want the end, and that of a summary's job may unblock a join to be prepared.
            if state in TERMINAL and run.claim.job.batch_id is None:
                self.ring(doorbell.EVENTS if run.claim.job.summary_id is None else doorbell.SERVICE)
            if run.stream is not None and not end.engine_is_done:
                self._settle(run, end.outcome)
        finally:
            self.keeper.drop(run.job)
            if run.stream is not None:
                run.stream.close()

    def _record(self, run: JobRun, end: RunEnd) -> JobState | None:
        """Write the outcome, retrying until the database accepts it.

        The fence makes retries safe even if the result of a commit is unknown or another worker has the job
        by now; a finished answer is too expensive to drop because the database was down for a minute. If the
        database rejects the data itself, the job fails instead: it would be rejected wherever it ran.

        Returns:
            The job's new state; None if its lease is lost, or the outcome could not be written.
        """
        output = run.answer.output()
        end = replace(end, outcome=_judged(run, end.outcome, output))
        give_up_at = time.monotonic() + 2 * self.settings.jobs.lease_seconds
        while True:
            try:
                with transaction(self.sessions) as session:
                    self.keeper.report_first_token(session, run.job)
                    return write_outcome(session, run.claim.lease, end, output, settings=self.settings.jobs)
            except (DataError, IntegrityError, UnicodeError) as error:
                telemetry.logger().error(telemetry.LOOP_FAILED, loop="record", error=type(error).__name__)
                if end.outcome == _UNRECORDABLE:
                    return None
                end, output = replace(end, outcome=_UNRECORDABLE), _NOTHING
            except SQLAlchemyError as error:
                telemetry.logger().warning(telemetry.LOOP_FAILED, loop="record", error=type(error).__name__)
                if time.monotonic() > give_up_at or self.stopping.wait(_RECORD_RETRY_SECONDS):
                    return None

    def _settle(self, run: JobRun, outcome: Outcome) -> None:
        """Delete the draining reservation if the engine soon confirms the end of its request."""
        run.log.info(telemetry.RESERVATION_DRAINING, blocks=run.claim.blocks)
        if isinstance(outcome, Finished | Stopped):
            linger = 1.0 if self.stopping.is_set() else _LINGER_SECONDS
            if wait_for_end(run.job, seconds=linger):
                self._close_reservation(run.claim)

    def _close_reservation(self, claim: Claim) -> None:
        try:
            with transaction(self.sessions) as session:
                reservations.close(session, claim.lease.lease_id)
        except SQLAlchemyError as error:  # it stays draining; the monitor deletes it later
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="reservation", error=type(error).__name__)


def _judged(run: JobRun, outcome: Outcome, output: Output) -> Outcome:
    """Fail a part of a summary that only thought: otherwise its text would be missing in silence."""
    is_lost = isinstance(outcome, Finished) and output.reasoning_tokens and not output.text.strip()
    return Failed(NoVisibleTextError()) if is_lost and run.claim.job.summary_id is not None else outcome


def _error_fields(outcome: Outcome) -> dict[str, str | None]:
    """Return an error's log fields. They include the engine's own message, which tenants never see."""
    error = outcome.error if isinstance(outcome, Failed) else None
    fields = {"error": error.code if error else None}
    return (
        fields | {"engine_message": error.said} if isinstance(error, EngineError) and error.said else fields
    )


def _event(state: JobState | None, outcome: Outcome) -> str:
    if state is None:
        return telemetry.LEASE_LOST
    if state in TERMINAL:
        return telemetry.JOB_ENDED
    return telemetry.JOB_RETRIED if isinstance(outcome, Failed) else telemetry.JOB_RELEASED
