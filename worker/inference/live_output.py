"""Live output: published from a thread of its own, so that a frozen broker delays no token."""

import queue
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

import redis

from jobs import live_output, liveness
from jobs.live_output import Delta, OutputPiece
from jobs.queries import QueuedJob
from jobs.states import Lane
from worker.inference.text_answer import AnyAnswer
from worker.loop import Loop

# While the broker is down, deltas beyond this are dropped.
_MAX_WAITING: Final = 10_000
_MAX_BATCH: Final = 500
# Batch jobs are not watched token by token.
_BATCH_SECONDS: Final = 0.5


class LiveOutput:
    """The publisher of all running jobs' output."""

    def __init__(self, broker: redis.Redis) -> None:
        self._broker = broker
        self._waiting: queue.Queue[tuple[UUID, Delta]] = queue.Queue(_MAX_WAITING)
        self.loop = Loop("live-output", self.run_once, interval=3600)

    def publisher(self, job: QueuedJob, answer: AnyAnswer) -> "OutputPublisher":
        """Create the publisher of this job's output."""
        return OutputPublisher(
            self._put, job.id, answer, interval=0 if job.lane == Lane.INTERACTIVE else _BATCH_SECONDS
        )

    def run_once(self) -> None:
        """Publish every waiting delta. If the broker is down, the batch being sent is lost."""
        while batch := self._next():
            # All or nothing: a stream that was cut off from its expiry would stay.
            pipeline = self._broker.pipeline(transaction=True)
            for job_id, delta in batch:
                pipeline.xadd(
                    live_output.stream_key(job_id),
                    live_output.encode(delta),  # type: ignore[arg-type]  # a dict of texts is not one of anything
                    maxlen=live_output.MAX_ENTRIES,
                    approximate=True,
                )
            for job_id in {each for each, _ in batch}:
                pipeline.expire(live_output.stream_key(job_id), live_output.EXPIRES)
            pipeline.execute()
            liveness.progressed()

    def _put(self, job_id: UUID, delta: Delta) -> None:
        try:
            self._waiting.put_nowait((job_id, delta))
        except queue.Full:
            return
        self.loop.wake()

    def _next(self) -> list[tuple[UUID, Delta]]:
        batch: list[tuple[UUID, Delta]] = []
        while len(batch) < _MAX_BATCH:
            try:
                batch.append(self._waiting.get_nowait())
            except queue.Empty:
                break
        return batch


class OutputPublisher:
    """The publisher of one job's output. Only its run uses it."""

    def __init__(
        self,
        put: Callable[[UUID, Delta], None],
        job_id: UUID,
        answer: AnyAnswer,
        *,
        interval: float,
    ) -> None:
        """Args: interval: minimum seconds between deltas, and before the first one."""
        self._put = put
        self._job_id = job_id
        self._answer = answer
        self._interval = interval
        self._num_published = 0
        self._has_published = False
        self._certain = OutputPiece("", "")
        self._published_at = time.monotonic()

    def publish(self) -> None:
        """Publish the new text, unless the last delta is more recent than the interval."""
        now = time.monotonic()
        if now - self._published_at >= self._interval:
            self._publish(self._answer.take_new(), self._answer.take_log_probs())
            self._published_at = now

    def collect(self) -> None:
        """Keep what is final even if the job continues. Call it before the answer's `output()`."""
        self._certain = self._certain.joined(self._answer.take_new())

    def end(self, *, is_final: bool) -> None:
        """Publish the rest. If the job continues elsewhere, publish only what its next run cannot change.

        Of a batch job that ended before its first delta, readers take all from its row once its end is
        announced.
        """
        if is_final and self._interval and not self._has_published:
            return
        rest = self._answer.take_new() if is_final else OutputPiece("", "")
        # Another run publishes its scores anew.
        self._publish(
            self._certain.joined(rest), self._answer.take_log_probs() if is_final else None, is_last=True
        )

    def _publish(self, new: OutputPiece, log_probs: bytes | None, *, is_last: bool = False) -> None:
        delta = Delta(
            self._num_published,
            new.text,
            self._answer.num_tokens,
            is_last=is_last,
            reasoning=new.reasoning,
            log_probs=log_probs or b"",
        )
        self._put(self._job_id, delta)
        self._num_published += new.num_chars
        self._has_published = True
