"""Recording the end of a run: hand it in, publish its last output, wait for the engine's late word."""

import asyncio
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, ParamSpec
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from jobs import doorbell, telemetry
from jobs.checkpoints import Output
from jobs.errors import EngineError, InvalidOutputError, LongbatchError, ShownInvalidOutputError
from jobs.finishing import StoredEnd
from jobs.prompts.confined.processes import CheckerLostError
from jobs.prompts.tools.forms import ANY_FORM
from jobs.responses.objects import RESPONSE_TASK, WAITED_TASK
from jobs.states import TERMINAL, FinishReason, JobState, Lane
from jobs.transitions import Lease
from worker.doorbell import RingBell
from worker.guides.answers import fault_of, unfenced
from worker.guides.checker import FormChecker
from worker.inference.desk import Desk
from worker.inference.follow import wait_for_end
from worker.inference.leases import LeaseKeeper
from worker.inference.outcome import Failed, Finished, Outcome, RunEnd, Stopped
from worker.inference.run import Run
from worker.inference.tensors.outputs import OutputFiles, OutputsNotStoredError
from worker.metrics.runs import RunFigures, RunMetrics

_LINGER_SECONDS: Final = 10.0
P = ParamSpec("P")


class NoVisibleTextError(LongbatchError):
    """The model only thought: max_tokens ended its answer before any visible text."""

    code = "no_visible_text"


@dataclass(frozen=True)
class Recorder:
    """The dependencies for recording the ends of runs; shared by all of them.

    Attributes:
        close_reservation: deletes the reservation of a lease; it may block.
        threads: where that runs.
        stopping: set when the process is shutting down.
        files: stores the tensors that jobs ask for.
        announce: tells waiting callers of ends; transactions do so themselves if they know their outcome.
        forms: checks the forms of answers.
    """

    desk: Desk
    keeper: LeaseKeeper
    ring: RingBell
    close_reservation: Callable[[Lease], None]
    threads: Executor
    stopping: threading.Event
    files: OutputFiles
    announce: Callable[[Collection[UUID]], None] = lambda _: None
    forms: FormChecker = field(default_factory=FormChecker)
    metrics: RunMetrics = field(default_factory=RunMetrics.of_nobody)

    async def end(self, run: Run, end: RunEnd) -> None:
        """Record the end of a run. A late confirmation still deletes its draining reservation."""
        try:
            run.publisher.collect()
            outcome, output = await self._checked(run, end.outcome, run.output())
            outcome, output = await self._kept(run, _judged(run, outcome, output), output)
            end = replace(end, outcome=outcome)
            stored = await asyncio.wrap_future(self.desk.hand_in(run, end, output))
            state = stored.state
            if output.has_files and state is not JobState.COMPLETED:
                await self._in_thread(self.files.discard, run.lease)
            run.publisher.end(is_final=state in TERMINAL)
            run.log.info(
                _event(state, end.outcome),
                state=state,
                outcome=type(end.outcome).__name__,
                completion_tokens=run.answer.num_tokens,
                **_error_fields(end.outcome),
            )
            self.metrics.ended(_figures(run, end.outcome))
            if state is None:  # lost, or committed by a transaction that could not tell: this is harmless
                self.announce([run.lease.job_id])
            if state is None or state in TERMINAL:
                self._ring_for(run, stored)
            if run.stream is not None and not end.engine_is_done:
                await self._close_if_confirmed(run, end.outcome)
        finally:
            self.keeper.drop(run)
            if run.stream is not None:
                await run.stream.close()

    async def _checked(self, run: Run, outcome: Outcome, output: Output) -> tuple[Outcome, Output]:
        """Fail an answer that is not what it must be, unless it only ends too early."""
        job, form = run.claim.job, run.form
        if form == ANY_FORM or not isinstance(outcome, Finished):
            return outcome, output
        if form.is_in_words and form.calls is None:
            output = replace(output, text=unfenced(output.text))
        if outcome.reason is FinishReason.LENGTH:
            return outcome, output
        try:
            fault = await fault_of(output, form, self.forms, tenant_id=job.tenant_id)
        except CheckerLostError as error:
            return Failed(error), output
        if fault is None:
            return Finished(FinishReason.TOOL_CALLS) if output.calls else outcome, output
        # The text of an answer for which a caller waits may be on a screen; those asked for in words are not
        # streamed.
        is_awaited = job.task == WAITED_TASK or (job.lane == Lane.INTERACTIVE and job.task != RESPONSE_TASK)
        kind = ShownInvalidOutputError if is_awaited and not form.is_in_words else InvalidOutputError
        failed = Failed(kind(f"The answer does not have the form that was asked for: {fault}."))
        return failed, replace(output, is_resumable=False)

    async def _kept(self, run: Run, outcome: Outcome, output: Output) -> tuple[Outcome, Output]:
        """Store the tensors of a complete answer that its job asks for, before its end."""
        if run.outputs is None:
            return outcome, output
        try:
            if not isinstance(outcome, Finished):
                return outcome, output
            if run.outputs.error is not None:
                return Failed(run.outputs.error), output
            await self._in_thread(self.files.keep, run.outputs, run.claim)
        except (SQLAlchemyError, OSError, LongbatchError) as error:
            run.log.warning(telemetry.LOOP_FAILED, loop="engine-outputs", error=type(error).__name__)
            return Failed(OutputsNotStoredError()), output
        finally:
            run.outputs.close()
        return outcome, replace(output, has_files=True)

    async def _in_thread(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        call = partial(work, *args, **kwargs)
        await asyncio.get_running_loop().run_in_executor(self.threads, call)

    def _ring_for(self, run: Run, stored: StoredEnd) -> None:
        """Wake the service workers: a webhook, a tree or a batch may wait for the end."""
        job = run.claim.job
        if job.summary_id is not None:
            self.ring(doorbell.SERVICE)
        elif stored.may_have_deliveries:
            self.ring(doorbell.EVENTS)
        if job.batch_id is not None and not self._has_others_of(job.batch_id):
            self.ring(doorbell.BATCHES)

    def _has_others_of(self, batch_id: UUID) -> bool:
        """Return True if this worker runs other lines of the batch: then this was not its last."""
        return any(each.claim.job.batch_id == batch_id and not each.is_ending for each in self.keeper.runs())

    async def _close_if_confirmed(self, run: Run, outcome: Outcome) -> None:
        """Delete the draining reservation if the engine soon confirms the end of its request."""
        run.log.info(telemetry.RESERVATION_DRAINING, blocks=run.claim.blocks)
        if isinstance(outcome, Finished | Stopped):
            linger = 1.0 if self.stopping.is_set() else _LINGER_SECONDS
            if await wait_for_end(run, seconds=linger):
                await self._in_thread(self.close_reservation, run.lease)
                self.desk.wake()  # its slot is free only now


def _judged(run: Run, outcome: Outcome, output: Output) -> Outcome:
    """Fail a part of a summary that only thought: otherwise its text would be missing in silence."""
    is_lost = isinstance(outcome, Finished) and output.reasoning_tokens and not output.text.strip()
    return Failed(NoVisibleTextError()) if is_lost and run.claim.job.summary_id is not None else outcome


def _figures(run: Run, outcome: Outcome) -> RunFigures:
    """Sum up the run for its worker's metrics."""
    job, first_at = run.claim.job, run.first_token_at
    error = outcome.error.code if isinstance(outcome, Failed) else ""
    reason = outcome.reason.value if isinstance(outcome, Finished | Stopped) else error
    return RunFigures(
        lane=job.lane,
        outcome=type(outcome).__name__.lower(),
        reason=reason,
        seconds=time.monotonic() - run.began_at,
        to_first_token=None if first_at is None else first_at - run.began_at,
        generating=0.0 if first_at is None else run.last_token_at - first_at,
        prompt_tokens=(job.prompt_tokens or 0) if run.claim.is_first else 0,
        cached_tokens=run.cached_tokens or 0,
        resent_tokens=run.resent_tokens,
        completion_tokens=run.answer.num_tokens - run.num_before,
    )


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
