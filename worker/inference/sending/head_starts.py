"""Head starts: the next job's request is sent as soon as a run's request is over, and its tick comes after.

A tick takes longer than the engine's next iteration. What one would start now is foretold from what the last
one left, and its request takes the slot at once. The next tick claims the job, and its run takes the request
over; if the job is no longer to be had, the request is stopped, and keeps its place until it has ended.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import numpy as np

from jobs import telemetry
from jobs.scheduling.claims import Claim
from jobs.scheduling.head_starts import FilledSlot, HeadStart, Outlook
from jobs.transitions import Lease
from worker.engine import loop as engine_loop
from worker.engine.client import EngineModel
from worker.engine.deltas import EngineDelta
from worker.engine.engine import StreamEnd
from worker.engine.request import Request
from worker.inference.prefetch import PromptPrefetcher
from worker.inference.run_stream import RunStream
from worker.inference.sending.requests import RequestMaker
from worker.metrics.runs import RunMetrics

# For the request of a job that was not claimed to end: a real engine ends it after a chunk of its prompt.
_END_SECONDS: Final = 30.0
_MAX_STOPPED: Final = 1000
# A worker that shuts down waits this long for stopped requests to end: to cut one is the worse choice.
_FINISH_SECONDS: Final = 5.0
Put = Callable[[EngineDelta | StreamEnd], None]


@dataclass(eq=False)
class SentRequest:
    """A request that was sent before its job was claimed, and what came of it. Used on the engine loop.

    Attributes:
        head_start: the job.
        request: as it was sent.
    """

    head_start: HeadStart
    request: Request
    _stream: RunStream = field(init=False)
    _events: list[EngineDelta | StreamEnd] = field(default_factory=list)
    _put: Put | None = None
    _end: StreamEnd | None = None
    _has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, model: EngineModel) -> None:
        """Send it soon; raises EngineError if it cannot be sent."""
        self._stream = RunStream(model.served.call(self.request), put=self._take)
        self._stream.start()

    def take_over(self, request: Request, put: Put) -> RunStream | None:
        """Pass all events on from now on, also those that came; None: the run needs another request."""
        is_same = np.array_equal(self.request.ids, request.ids)
        # Two arrays compare as equal only if they are one.
        if not is_same or replace(request, ids=self.request.ids) != self.request:
            return None
        for each in self._events:
            put(each)
        self._events.clear()
        self._put = put
        return self._stream

    @property
    def is_over(self) -> bool:
        """True if the engine certainly holds nothing for it."""
        return self._end is not None and self._end.confirmed

    async def stop(self) -> bool:
        """Let the engine end it. Returns True once it is certain that the engine holds nothing for it."""
        if self._end is None:
            self._stream.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._has_ended.wait()
        await self._stream.close()
        return self.is_over

    def _take(self, event: EngineDelta | StreamEnd) -> None:
        if isinstance(event, StreamEnd):
            self._end = event
            self._has_ended.set()
        if self._put is not None:
            self._put(event)
        else:
            self._events.append(event)


class HeadStarts:
    """The head starts of one engine's worker.

    Runs begin them on the engine loop; the thread that ticks tells what became of them.
    """

    def __init__(
        self,
        prefetcher: PromptPrefetcher,
        requests: RequestMaker,
        *,
        model: Callable[[], EngineModel | None],
        close_reservation: Callable[[Lease], None],
        threads: Executor,
        metrics: RunMetrics,
    ) -> None:
        """Set up without an outlook: nothing begins before the first tick.

        Args:
            prefetcher: has the head of the queue, and its prompts.
            requests: makes the requests.
            model: of the engine; None: it is not available.
            close_reservation: deletes the place that a stopped request kept; it may block.
            threads: where that runs.
            metrics: of this worker.
        """
        self._prefetcher = prefetcher
        self._requests = requests
        self._model = model
        self._close_reservation = close_reservation
        self._threads = threads
        self._metrics = metrics
        self._lock = threading.Lock()
        self._outlook: Outlook | None = None
        self._is_ticking = self._is_outdated = False
        self._stops: set[Future[None]] = set()
        self._filled: list[FilledSlot] = []
        self._sent: dict[UUID, SentRequest] = {}  # by the lease of the run that ended
        self._claimed: dict[Lease, SentRequest] = {}
        self._stopped: set[UUID] = set()  # jobs that a tick did not claim: the next one need not either
        self.on_room: Callable[[], object] = lambda: None

    def foresee(self, outlook: Outlook | None) -> None:
        """Foretell from this from now on, as a tick has left it; None: begin nothing until the next one."""
        with self._lock:
            self._is_ticking = False
            if outlook is not None:
                self._filled = [each for each in self._filled if each.ended in outlook.load.running]
                for each in self._filled:
                    outlook = outlook.refilled(each)
            self._outlook = None if self._is_outdated else outlook

    def forget_outlook(self) -> None:
        """Begin nothing until a tick that begins later: less may be free than the last one left."""
        with self._lock:
            self._outlook, self._is_outdated = None, True

    def begin(self, ended: Lease) -> None:
        """Send the request of the job that will probably start in the slot of this run, if that is foreseen.

        On the engine loop, once the run's own request is over, and before its end is handed in.
        """
        model = self._model()
        preview = self._prefetcher.candidates()
        sent: SentRequest | None = None
        with self._lock:
            if self._outlook is not None and preview is not None and model is not None:
                begun = {each.head_start.lease.job_id for each in self._sent.values()}
                candidates = [each for each in preview.candidates if each.job.id not in begun]
                next_one = self._outlook.successor(
                    candidates, ended=ended.lease_id, is_ticking=self._is_ticking
                )
                if next_one is not None:
                    sent = self._send(next_one, ended, model)
            if self._outlook is not None:  # else it is still taken for running, which is safe
                slot = FilledSlot(ended.lease_id, None if sent is None else sent.head_start)
                self._filled.append(slot)
                self._outlook = self._outlook.refilled(slot)

    def begin_tick(self, ended: Collection[Lease]) -> tuple[list[HeadStart], list[FilledSlot]]:
        """Tell a tick that is about to store these runs what is in the engine; `foresee` ends it.

        Returns:
            What is in their slots, and in the slots of runs that it does not store.
        """
        stored = [each.lease_id for each in ended]
        with self._lock:
            self._is_ticking, self._is_outdated = True, False
            begun = [sent.head_start for each in stored if (sent := self._sent.get(each)) is not None]
            others = [
                FilledSlot(each, sent.head_start) for each, sent in self._sent.items() if each not in stored
            ]
        return begun, others

    def settle(self, ended: Collection[Lease], claims: Iterable[Claim]) -> None:
        """Keep the requests of jobs that were claimed for their runs, and stop the others in these slots."""
        claimed = {each.lease for each in claims}
        num_taken = 0
        with self._lock:
            for each in ended:
                sent = self._sent.get(each.lease_id)
                if sent is not None and sent.head_start.lease in claimed:
                    self._claimed[sent.head_start.lease] = self._sent.pop(each.lease_id)
                    num_taken += 1
        self._metrics.settled(num_taken=num_taken)
        for each in ended:
            self.leave(each)

    def leave(self, ended: Lease, stored: "Future[Any] | None" = None) -> SentRequest | None:
        """Stop what is in the slot of a run if no tick claims it.

        Args:
            ended: the run's lease.
            stored: the end of the run, if that is stored without a tick: the request's place comes with it.

        Returns:
            The request, which needs a place where the end is stored, if it is not over by then.
        """
        with self._lock:
            if (sent := self._sent.pop(ended.lease_id, None)) is None:
                return None
            if len(self._stopped) >= _MAX_STOPPED:
                self._stopped.clear()
            self._stopped.add(sent.head_start.lease.job_id)
        self._metrics.settled(num_stopped=1)
        self._start_stop(sent, stored)
        return sent

    def drop(self, lease: Lease) -> None:
        """Stop what was sent for a run that came to nothing, or is in its slot."""
        self.leave(lease)
        if (sent := self.take(lease)) is not None:
            self._start_stop(sent)

    def finish(self) -> None:
        """Wait for the stopped requests to end."""
        with self._lock:
            stops = set(self._stops)
        wait(stops, _FINISH_SECONDS)

    def take(self, lease: Lease) -> SentRequest | None:
        """Take the request that was sent for this claim; None: there is none."""
        with self._lock:
            return self._claimed.pop(lease, None)

    def _send(self, head_start: HeadStart, ended: Lease, model: EngineModel) -> SentRequest | None:
        ranked = head_start.ranked
        found = self._prefetcher.find(ranked.job)
        if found is None or ranked.job.num_rescues or ranked.job.id in self._stopped:
            return None
        row, prompt = found
        try:
            claim = Claim(head_start.lease, ranked.size.blocks, ranked.size.output_tokens, row)
            if (request := self._requests.first(claim, prompt, model)) is None:
                return None
            sent = SentRequest(head_start, request)
            sent.send(model)
        except Exception as error:  # noqa: BLE001  # whatever is wrong with the job, its own run tells
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="head-start", error=type(error).__name__)
            return None
        self._sent[ended.lease_id] = sent
        return sent

    def _start_stop(self, sent: SentRequest, stored: "Future[Any] | None" = None) -> None:
        stop = engine_loop.start(self._stop(sent, stored))
        with self._lock:
            self._stops.add(stop)
        stop.add_done_callback(self._stops.discard)

    async def _stop(self, sent: SentRequest, stored: "Future[Any] | None") -> None:
        # If its end is not certain, the place stays until the monitor finds that the engine is done with it.
        if await sent.stop():
            if stored is not None:
                await asyncio.wrap_future(stored)  # with which its place may have come
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._close_reservation, sent.head_start.lease)
            self.on_room()
