"""One job from its claim to its end: load the prompt, stream the answer, record the outcome."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from sqlalchemy.exc import InterfaceError, NoResultFound, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from jobs import checkpoints, ids, telemetry
from jobs.database import transaction
from jobs.errors import EngineLostError, EngineUnavailableError, LongbatchError
from jobs.models import Job
from jobs.prompts import store
from jobs.prompts.counter import PromptCounter
from jobs.prompts.store import CountedPrompt
from jobs.prompts.tokenizer import unpack_ids
from jobs.scheduling import growth
from jobs.scheduling.claims import Claim
from jobs.scheduling.growth import WaitForBlocks, YieldSlot
from jobs.scheduling.sizing import ClaimPolicy
from jobs.settings import Settings
from jobs.states import StopReason
from worker.engine.client import EngineModel
from worker.engine.deadlines import deadlines_for
from worker.engine.prompt_text import prompt_text
from worker.engine.request import Request
from worker.engine.stream import Stream
from worker.inference.answer import Answer
from worker.inference.follow import follow, wait_for_end, wait_for_stop
from worker.inference.leases import HeldLease, LeaseKeeper
from worker.inference.live_output import LiveOutput, OutputPublisher
from worker.inference.monitor import EngineMonitor
from worker.inference.outcome import (
    Failed,
    Finished,
    LeaseLost,
    Outcome,
    Recounted,
    RunEnded,
    Stopped,
    Yielded,
)
from worker.inference.prefetch import PromptPrefetcher
from worker.inference.record import JobRun, Recorder
from worker.inference.sampling import sampling_of
from worker.inference.text_answer import TextAnswer

# A stopped request ends at the engine's next iteration: at once, or after a prefill chunk (seconds).
_SETTLE_SECONDS: Final = 0.5
# How often a job that waits for blocks asks for them; each request is one short transaction.
_ASK_AGAIN_SECONDS: Final = 0.2


Free = Callable[[int], None]
AnyAnswer = Answer | TextAnswer


class UnexpectedError(LongbatchError):
    """The worker hit an unexpected error."""

    code = "internal_error"
    retryable = True


@dataclass(frozen=True)
class Runner:
    """The dependencies for running a job; shared by all slots.

    Attributes:
        policy: returns the present claim policy.
        stopping: set when the process is shutting down.
    """

    settings: Settings
    policy: Callable[[], ClaimPolicy]
    sessions: sessionmaker[Session]
    counter: PromptCounter
    monitor: EngineMonitor
    keeper: LeaseKeeper
    prefetcher: PromptPrefetcher
    live: LiveOutput
    recorder: Recorder
    stopping: threading.Event

    def run(
        self, claim: Claim, held: HeldLease, model: EngineModel, *, sent: Callable[[], None], free: Free
    ) -> None:
        """Run one claimed job and record how its run ended.

        Afterwards the job has ended, is queued again or is lost, and its reservation is deleted or draining.

        Args:
            claim: the job.
            held: its lease.
            model: the engine's model, adapter and capacity.
            sent: called once the job's first request is on its way.
            free: called with the number of generated tokens as soon as the engine holds nothing for the job.
        """
        log = telemetry.logger().bind(job_id=ids.job_id(claim.job.id), attempt=claim.job.attempt)
        log.info(telemetry.JOB_CLAIMED, blocks=claim.blocks, prompt_tokens=claim.job.prompt_tokens)
        answer = self._empty_answer(claim.job, model)
        publisher = self.live.publisher(claim.job, answer)
        stream: Stream | None = None
        outcome: Outcome | None
        is_confirmed = True
        try:
            prompt, earlier = self._load(claim.job)
            answer.resume(earlier)
            held.take_over(answer.num_tokens)
            outcome = self._outcome_without_engine(claim.job, prompt, answer)
            until = claim.output_tokens
            while outcome is None:
                answer.begin_run(until=until)
                stream = self._open(claim, held, prompt, answer, model)
                stream.start()
                sent()
                outcome, is_confirmed = self._follow(claim.job, held, answer, stream, model, publisher)
                if isinstance(outcome, RunEnded) and is_confirmed:
                    stream.close()
                    going_on = self._extend(claim, held, answer)
                    outcome, until = (None, going_on) if isinstance(going_on, int) else (going_on, until)
        except LongbatchError as error:
            outcome = Failed(error)
        except (OperationalError, InterfaceError, PoolTimeoutError):
            # The database was unavailable and nothing was sent, so the job goes back unchanged.
            outcome = Stopped(StopReason.SHUTDOWN)
        except Exception:
            log.exception(telemetry.LOOP_FAILED, loop="slot")
            outcome, is_confirmed = Failed(UnexpectedError()), stream is None
        held.is_ending = True
        if stream is not None and is_confirmed:
            free(answer.num_tokens)
        self.recorder.end(
            JobRun(claim, held, answer, publisher, log), outcome, stream, is_confirmed=is_confirmed
        )

    @staticmethod
    def _outcome_without_engine(job: Job, prompt: CountedPrompt, answer: AnyAnswer) -> Outcome | None:
        """Return how the run ends without an engine, or None if it needs one."""
        if prompt.num_tokens != job.prompt_tokens:
            return Recounted(prompt.num_tokens)
        return Finished(answer.finish_reason) if answer.finish_reason is not None else None

    def _extend(self, claim: Claim, held: HeldLease, answer: AnyAnswer) -> int | Outcome:
        """Wait for blocks. Returns the number of tokens the job may reach, or how its run ends."""
        while True:
            granted = self._request_blocks(claim, answer)
            match granted:
                case int():
                    return granted
                case YieldSlot():
                    return Yielded()
                case None:
                    return LeaseLost()
            stopped = wait_for_stop(held, seconds=_ASK_AGAIN_SECONDS)
            if stopped is not None:
                return stopped

    def _request_blocks(self, claim: Claim, answer: AnyAnswer) -> int | WaitForBlocks | YieldSlot | None:
        try:
            with transaction(self.sessions) as session:
                return growth.extend(
                    session,
                    self.settings.engine.name,
                    claim.lease,
                    produced=answer.num_tokens,
                    policy=self.policy(),
                )
        except SQLAlchemyError as error:  # the lease bounds the retries
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="extend", error=type(error).__name__)
            return WaitForBlocks()

    def _empty_answer(self, job: Job, model: EngineModel) -> AnyAnswer:
        kind = TextAnswer if model.adapter.takes_text else Answer
        return kind(self.counter.tokenizer, max_tokens=job.max_tokens, stops=_stops(job))

    def _load(self, job: Job) -> tuple[CountedPrompt, list[int]]:
        """Load the prompt and the tokens that an earlier run of this job saved."""
        if job.text_id is None:
            raise NoResultFound  # the schema keeps such jobs from running
        prompt = self.prefetcher.take(job.text_id)
        if prompt is not None and not job.completion_tokens:
            return prompt, []
        with transaction(self.sessions) as session:
            if prompt is None:
                prompt = store.counted(session, store.load(session, job.text_id), self.counter)
            saved = checkpoints.load(session, job.id)
        if saved is None or saved.fingerprint != self.counter.fingerprint:
            return prompt, []
        return prompt, unpack_ids(saved.packed_ids).tolist()

    def _open(
        self, claim: Claim, held: HeldLease, prompt: CountedPrompt, answer: AnyAnswer, model: EngineModel
    ) -> Stream:
        tokenizer, adapter = self.counter.tokenizer, model.adapter
        ids = np.concatenate([unpack_ids(prompt.packed_ids), np.array(answer.ids, dtype=np.int32)])
        request = Request(
            request_id=claim.lease.lease_id.hex,
            ids=ids,
            max_tokens=answer.num_wanted,
            end_id=tokenizer.end_id,
            pad_id=tokenizer.pad_id,
            sampling=sampling_of(claim.job, start=len(answer.ids)),
            text=prompt_text(tokenizer, ids, adds_bos=adapter.adds_bos) if adapter.takes_text else "",
            stops=_stops(claim.job),
        )
        return Stream(self.settings.triton, request, adapter=adapter, put=held.inbox.put)

    def _follow(
        self,
        job: Job,
        held: HeldLease,
        answer: AnyAnswer,
        stream: Stream,
        model: EngineModel,
        publisher: OutputPublisher,
    ) -> tuple[Outcome, bool]:
        """Follow the stream to its end.

        Returns:
            How the run ended, and whether the engine certainly holds nothing for the request.
        """
        is_streaming = model.adapter.is_streaming
        deadlines = deadlines_for(
            prompt_tokens=(job.prompt_tokens or 0) + answer.num_tokens,
            max_tokens=answer.num_wanted,
            capacity=model.capacity,
            time_scale=self.settings.engine.time_scale,
        )
        outcome, is_confirmed = follow(
            held,
            answer,
            deadlines if is_streaming else replace(deadlines, first_token=deadlines.total),
            publish=publisher.publish,
            lease_seconds=self.settings.jobs.lease_seconds,
            snapshot_seconds=self.settings.jobs.checkpoint_seconds,
        )
        held.generating_since = None
        error = outcome.error if isinstance(outcome, Failed) else None
        if isinstance(error, EngineLostError | EngineUnavailableError):
            self.monitor.doubt()
        elif isinstance(outcome, LeaseLost):
            stream.cancel()  # no time for a stop request: the stream must not outlive the lease
        elif not is_confirmed:
            stream.stop()
            late = None if is_streaming else answer  # its text arrives only now
            is_confirmed = wait_for_end(held, seconds=_SETTLE_SECONDS, answer=late)
        return outcome, is_confirmed


def _stops(job: Job) -> tuple[str, ...]:
    stops = job.sampling.get("stop") or []
    return (stops,) if isinstance(stops, str) else tuple(stops) if isinstance(stops, list) else ()
