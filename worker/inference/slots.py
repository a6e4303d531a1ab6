"""The slots of an engine: the life of a job there, from its claim to its recorded end.

A run is a coroutine on the engine loop. It loads its prompt, opens a request and follows the stream. If its
reservation is used up, it extends that and opens the next request. Then it records how it ended.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker

from jobs import checkpoints, ids, telemetry
from jobs.adapters import registry as adapters
from jobs.answers.log_probs import read_scores
from jobs.checkpoints import Output
from jobs.database import transaction
from jobs.engines import tensor_rows
from jobs.errors import (
    EngineBusyError,
    EngineError,
    EngineForbidsError,
    EngineLostError,
    EngineMisconfiguredError,
    EngineUnavailableError,
    LongbatchError,
    RetryableEngineError,
)
from jobs.files.storage import PartStore
from jobs.prompts import store
from jobs.prompts.counter import PromptCounter
from jobs.prompts.store import CountedPrompt
from jobs.prompts.tools.forms import AnswerForm
from jobs.scheduling.growth import Extension, Granted, WaitForBlocks
from jobs.scheduling.sizing import ClaimPolicy
from jobs.settings import Settings
from jobs.starting import Claim
from jobs.states import StopReason
from jobs.transitions import LeaseLost
from worker.engine import loop as engine_loop
from worker.engine.client import EngineModel
from worker.engine.deadlines import deadlines_for
from worker.engine.request import WantedAdapter
from worker.inference.extender import Extender
from worker.inference.follow import follow, wait_for_end, wait_for_stop
from worker.inference.leases import LeaseKeeper
from worker.inference.live_output import LiveOutput
from worker.inference.monitor import EngineMonitor
from worker.inference.outcome import (
    Failed,
    Finished,
    NotLoaded,
    Outcome,
    Recounted,
    RunEnd,
    SegmentEnded,
)
from worker.inference.parts import split
from worker.inference.prefetch import PromptPrefetcher
from worker.inference.record import Recorder
from worker.inference.refusals import Refusals, Verdict
from worker.inference.requests import RequestMaker
from worker.inference.run import Run
from worker.inference.run_stream import RunStream
from worker.inference.tensors.files import with_files
from worker.metrics.runs import RunMetrics

T = TypeVar("T")

# A stopped request ends at the engine's next iteration: at once, or after a prefill chunk (seconds).
_CONFIRM_SECONDS: Final = 0.5
# How often a job that waits for blocks asks for them; each request is one short transaction.
_ASK_AGAIN_SECONDS: Final = 0.2
# The server's own words may name hosts and keys: they go to the log.
_FORBIDDEN: Final = "the engine refuses this request, and no other, with status 403"
_PUT_OFF: Final = "the engine puts this request off each time, and no other"


class UnexpectedError(LongbatchError):
    """The worker hit an unexpected error."""

    code = "internal_error"
    retryable = True


@dataclass(frozen=True)
class Slots:
    """The runs of one engine, and what they need.

    Attributes:
        policy: returns the present claim policy.
        threads: where database work and long computations of runs happen.
        stopping: set when the process is shutting down.
        extender: extends their reservations.
        refusals: what the engine's refusals prove.
        requests: makes what is sent.
        store: holds the files that jobs name.
        metrics: of the worker.
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
    threads: Executor
    stopping: threading.Event
    extender: Extender
    refusals: Refusals
    requests: RequestMaker
    store: PartStore
    metrics: RunMetrics = field(default_factory=RunMetrics.of_nobody)
    _ends: set[Future[None]] = field(init=False, default_factory=set)

    def start(self, claims: Sequence[Claim], model: EngineModel, *, valid_until: float) -> None:
        """Keep the leases of these claims and start their runs, once the prompts are here.

        Args:
            claims: that are committed.
            model: the engine's model, abilities and capacity.
            valid_until: monotonic time until which the leases hold.
        """
        runs = [Run(each, valid_until) for each in claims]
        for run in runs:
            self.keeper.hold(run)
        self.prefetcher.load(self.prefetcher.missing(each.job.text_id for each in claims))
        ends = [Future[None]() for _ in claims]
        self._ends.update(ends)
        engine_loop.start_all(self._occupy(run, model, ended) for run, ended in zip(runs, ends, strict=True))

    def stop(self, *, grace_seconds: float) -> None:
        """End all runs. Jobs that do not end within the grace go back to the queue."""
        wait(set(self._ends), grace_seconds)
        self.keeper.stop_all(StopReason.SHUTDOWN)
        while running := set(self._ends):
            wait(running)

    async def _occupy(self, run: Run, model: EngineModel, ended: "Future[None]") -> None:
        """Run a job, and free what it holds in this process, whatever happens."""
        try:
            await self._run(run, model)
        except Exception:  # noqa: BLE001  # the coroutine's entry point; the lease runs out, and the job is rescued
            telemetry.logger().exception(telemetry.LOOP_FAILED, loop="run")
        finally:
            self.keeper.drop(run)
            self._ends.discard(ended)
            ended.set_result(None)

    async def _run(self, run: Run, model: EngineModel) -> None:
        """Run one job and record how its run ended.

        Afterwards the job has ended, is queued again, or its lease is lost; its reservation is deleted or
        draining.
        """
        self._begin(run, model)
        try:
            end = await self._generate(run, model)
        except LongbatchError as error:
            end = RunEnd(Failed(error), engine_is_done=True)
        except (OperationalError, InterfaceError, PoolTimeoutError):
            end = RunEnd(NotLoaded(), engine_is_done=True)
        except Exception:
            run.log.exception(telemetry.LOOP_FAILED, loop="run")
            end = RunEnd(Failed(UnexpectedError()), engine_is_done=run.stream is None)
        run.is_ending = True
        await self.recorder.end(run, end)

    async def _generate(self, run: Run, model: EngineModel) -> RunEnd:
        """Generate the answer, one segment after another."""
        prompt = await self._load(run)
        granted = Granted(run.claim.output_tokens, slot_wait=run.claim.slot_wait)
        next_step = _outcome_without_engine(run, prompt) or granted
        while isinstance(next_step, Granted):
            stream = await self._open(run, prompt, model, until=next_step.tokens)
            end = await self._follow(run, stream, model, slot_wait=next_step.slot_wait)
            if end != RunEnd(SegmentEnded(), engine_is_done=True):
                return end
            _, next_step = await asyncio.gather(stream.close(), self._extend(run))
        return RunEnd(next_step, engine_is_done=True)

    def _begin(self, run: Run, model: EngineModel) -> None:
        claim, job = run.claim, run.claim.job
        log = telemetry.logger().bind(
            job_id=ids.job_id(job.id), attempt=job.attempt, **telemetry.in_trace(job.traceparent)
        )
        self.metrics.claimed(job.lane, waited=claim.waited if claim.is_first else None)
        log.info(telemetry.JOB_CLAIMED, blocks=claim.blocks, prompt_tokens=job.prompt_tokens)
        answer = self.requests.empty_answer(job, model)
        run.begin(answer, self.live.publisher(job, answer), log)

    async def _load(self, run: Run) -> CountedPrompt:
        """Load the prompt, and begin the answer with the tokens that an earlier run saved."""
        job = run.claim.job
        prefetched, saved = self.prefetcher.take(job.text_id), None
        is_plain = job.guide_id is None and job.adapter is None and not job.is_whole
        if prefetched is None or job.completion_tokens or not is_plain:
            prompt, saved = await self._in_thread(partial(self._read, run, prefetched))
        else:
            prompt = prefetched
        split(run.answer, run.form, prompt, self.counter.tokenizer)
        if saved is not None and saved.fingerprint == self.counter.fingerprint:
            scores = None if saved.log_probs is None else read_scores(saved.log_probs)
            run.answer.resume(saved.ids, scores)
        run.take_over(run.answer.num_tokens)
        return prompt

    def _read(self, run: Run, prompt: CountedPrompt | None) -> tuple[CountedPrompt, Output | None]:
        """Read the prompt, unless it is here already, the checkpoint, and what else is asked.

        Raises:
            AdapterRemovedError: the adapter that the job asks for was removed.
        """
        job = run.claim.job
        with transaction(self.sessions) as session:
            if prompt is None:
                prompt = store.counted(session, store.load(session, job.text_id), self.counter)
            if job.guide_id is not None:
                run.form = AnswerForm.read(store.load(session, job.guide_id).canonical)
            if job.adapter is not None:
                row = adapters.read(session, job.model, job.adapter)
                run.adapter = WantedAdapter(row.name, row.number, row.format, row.source, row.sha256)
            if job.is_whole and not (asked := tensor_rows.load(session, job.id)).is_empty:
                asked = with_files(session, asked, self.store, tenant_id=job.tenant_id)
                run.ask_for(asked, max_bytes=self.settings.jobs.max_engine_output_bytes)
            return prompt, checkpoints.load(session, job.id)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run what may block, or compute for long, beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    async def _open(self, run: Run, prompt: CountedPrompt, model: EngineModel, *, until: int) -> RunStream:
        """Send the request for the tokens up to `until`, those of earlier runs included.

        No other code sends the requests of jobs, and a run begins after its claim is committed.
        """
        run.is_first_request = run.claim.is_first and not run.answer.num_tokens
        if not run.is_first_request:
            run.resent_tokens += prompt.num_tokens + run.answer.num_tokens
        run.answer.begin_segment(until=until)
        abilities = model.served.abilities
        prepare = partial(self.requests.make, run, prompt, model)
        # Writing a long prompt as text takes as long as it is; ids are only copied.
        request = prepare() if abilities.takes_ids else await self._in_thread(prepare)
        if abilities.takes_cache_salt and not self.requests.salts.is_ready:
            await self._in_thread(self.requests.salts.load)
        request = self.requests.salted(request, run.claim.job, model)
        put = partial(run.put, tokens_per_block=model.capacity.tokens_per_block)
        run.stream = stream = RunStream(model.served.call(request), put=put, sent=run.begin_request)
        stream.start()
        return stream

    async def _follow(self, run: Run, stream: RunStream, model: EngineModel, *, slot_wait: int) -> RunEnd:
        """Follow the stream until the engine is done or the run ends."""
        job, answer = run.claim.job, run.answer
        is_streaming = model.served.abilities.is_streaming
        deadlines = deadlines_for(
            prompt_tokens=(job.prompt_tokens or 0) + answer.num_tokens,
            max_tokens=answer.num_wanted,
            capacity=model.capacity,
            slot_wait=slot_wait,
            time_scale=self.settings.engine.time_scale,
        )
        # The weights of an adapter may have to be sent first.
        arrives_at_once = model.served.abilities.takes_ids and run.adapter is None
        with self.monitor.following(run, arrives_at_once=arrives_at_once):
            end = await follow(
                run,
                deadlines if is_streaming else replace(deadlines, first_token=deadlines.total),
                lease_seconds=self.settings.jobs.lease_seconds,
                snapshot_seconds=self.settings.jobs.checkpoint_seconds,
                ends_itself=model.served.abilities.ends_itself,
            )
        if isinstance(end.outcome, Finished | SegmentEnded):
            self.refusals.answered(job.id)
            self.monitor.note_answer()
        match end:
            case RunEnd(Failed(EngineMisconfiguredError() | EngineBusyError() as error)):
                return replace(end, outcome=Failed(self._judge(job.id, error)))
            case RunEnd(Failed(EngineLostError() | EngineUnavailableError() as error)):
                self.monitor.suspend(error)
            case RunEnd(LeaseLost()):
                stream.cancel()  # no time for a stop request: the stream must not outlive the lease
            case RunEnd(engine_is_done=False):
                stream.stop()
                late = None if is_streaming else answer  # its text arrives only now
                is_done = await wait_for_end(run, seconds=_CONFIRM_SECONDS, answer=late)
                end = replace(end, engine_is_done=is_done)
        if not end.engine_is_done:
            self.monitor.expect_drain()
        return end

    def _judge(self, job_id: UUID, error: EngineUnavailableError) -> EngineError:
        """Suspend an engine that refuses a job, unless the refusal is about the job.

        Returns:
            The job's error.
        """
        now, num_probes = time.monotonic(), self.monitor.num_probes
        match self.refusals.refused(job_id, error, now=now, num_probes=num_probes):
            case Verdict.PROMPT:
                is_forbidden = isinstance(error, EngineForbidsError)
                return RetryableEngineError(_FORBIDDEN if is_forbidden else _PUT_OFF, said=error.said)
            case Verdict.ENGINE:
                self.monitor.suspend(error)
        return error

    async def _extend(self, run: Run) -> Granted | Outcome:
        """Ask for more blocks until there are some, or the run ends."""
        while True:
            asked = Extension(run.lease, run.answer.num_tokens)
            match await self.extender.extend(asked):
                case WaitForBlocks():
                    stopped = await wait_for_stop(run, seconds=_ASK_AGAIN_SECONDS)
                    if stopped is not None:
                        return stopped
                case granted_or_ended:
                    return granted_or_ended


def _outcome_without_engine(run: Run, prompt: CountedPrompt) -> Outcome | None:
    """Return how the run ends without an engine, or None if it needs one."""
    if prompt.num_tokens != run.claim.job.prompt_tokens:
        return Recounted(prompt.num_tokens)
    return Finished(run.answer.finish_reason) if run.answer.finish_reason is not None else None
