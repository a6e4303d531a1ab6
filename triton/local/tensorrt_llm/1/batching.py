"""The engine's loop: one thread that runs iterations in the time that the modelled GPU would take."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from .gauges import Gauges
from .requests import Looks
from .scheduler import Roofline, Scheduler, Sequence
from .server import ServerWatch
from .spoken import Spoken
from .trace import Trace

_CANCEL_PERIOD = 0.05  # seconds between polls of the clients' cancels; TensorRT-LLM's default is 0.1
_MAX_LAG = 0.05  # seconds that the loop may lag and still catch up; more is lost time
_MIN_SLEEP = 0.0003  # seconds; a shorter wait costs more than it lasts


class BatchingLoop:
    """The loop that runs every submitted request until closed. Its public methods are thread-safe."""

    def __init__(
        self,
        scheduler: Scheduler,
        roofline: Roofline,
        gauges: Gauges,
        server: ServerWatch,
        trace: Trace,
        *,
        time_scale: float,
    ) -> None:
        self._scheduler = scheduler
        self._roofline = roofline
        self._gauges = gauges
        self._server = server
        self._trace = trace
        self._time_scale = time_scale
        self._requests: dict[Sequence, Spoken] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = threading.Event()
        self._due = 0.0
        self._lost = 0.0
        self._looks = Looks(scheduler, _CANCEL_PERIOD)
        self._thread = threading.Thread(target=self._run, name="batching", daemon=True)

    def start(self) -> None:
        """Start the loop, with gauges that show an idle engine."""
        self._gauges.show(self._scheduler, None)
        self._thread.start()

    def submit(self, request: Spoken) -> None:
        """Queue the request at the next iteration boundary."""
        self._trace.note("came", request)
        self._post(lambda: self._add(request))
        request.speech.add_done_callback(lambda _: self._post(lambda: self._resume(request)))

    def stop(self, request_id: str) -> None:
        """End every request with this id at the next iteration boundary, as if complete."""
        self._post(lambda: self._stop(request_id))

    def close(self) -> None:
        """Stop the loop and fail open requests."""
        self._closing.set()
        with self._wake:
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 the thread's entry point: as on a GPU, a fault fails all
                self._fail(list(self._requests.values()), f"the engine failed: {error!r}")
        self._fail(list(self._requests.values()), "the engine is shutting down")

    def _turn(self) -> None:
        """Run from one iteration boundary to the next."""
        while self._inbox:
            self._inbox.popleft()()
        self._drop_cancelled()
        self._end_silences()
        if self._requests and self._server.is_stopping():
            self._fail(list(self._requests.values()), "the server is shutting down")
        self._admit()
        step = self._scheduler.next_iteration()
        self._gauges.show(self._scheduler, step)
        if step is None:
            self._rest()
            return
        self._pace(self._roofline.seconds(step) / self._time_scale)
        self._scheduler.advance(step)
        for sequence in step.yielding:
            if sequence in self._requests:  # otherwise another request's fault has ended it
                self._speak(self._requests[sequence])

    def _admit(self) -> None:
        """Activate every sequence that can start now."""
        num_started = self._scheduler.admit()
        for sequence in self._scheduler.active[-num_started:] if num_started else ():
            self._trace.note("began", self._requests[sequence], lost=self._lost)

    def _pace(self, seconds: float) -> None:
        """Wait for the iteration's time to pass. Small delays of this thread are made up."""
        now = time.monotonic()
        self._lost += max(0.0, now - _MAX_LAG - self._due)
        self._due = max(self._due, now - _MAX_LAG) + seconds
        if self._due - now > _MIN_SLEEP:
            self._closing.wait(self._due - now)

    def _rest(self) -> None:
        """Wait for an event, or until cancels and silences are due for a check."""
        with self._wake:
            if not self._inbox and not self._closing.is_set():
                self._wake.wait(_CANCEL_PERIOD if self._requests else None)
        self._due = max(self._due, time.monotonic())

    def _post(self, action: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(action)
            self._wake.notify()

    def _add(self, request: Spoken) -> None:
        self._requests[request.sequence] = request
        self._scheduler.add(request.sequence)

    def _stop(self, request_id: str) -> None:
        for request in [each for each in self._requests.values() if each.request_id == request_id]:
            self._forget(request)
            request.end_with_end_token()

    def _speak(self, request: Spoken) -> None:
        """Append the token that the request generated, or end or stall the request."""
        speech = request.speech
        if not speech.done():
            request.sequence.is_stalled = True
        elif (error := speech.exception()) is not None:
            self._fail([request], f"no answer could be made: {error!r}")
        elif pause := speech.result().pause(request.num_said, request.rested_at):
            request.flush()
            request.rested_at = request.num_said
            request.wakes_at = time.monotonic() + pause
            request.sequence.is_stalled = True
        elif fault := speech.result().fault(request.num_said):
            failing = self._requests.values() if fault.spreads else [request]
            self._fail(list(failing), "the engine failed, as it was configured to")
        else:
            self._append(request, speech.result().token(request.num_said), speech.result().stop_at)

    def _append(self, request: Spoken, token: int | None, stop_at: int | None) -> None:
        if token is None:
            self._forget(request)
            request.end_with_end_token()
        elif request.num_said + 1 in (request.sequence.max_tokens, stop_at):
            self._forget(request)
            request.say(token)
            request.end()
        else:
            request.say(token)
            request.send()

    def _resume(self, request: Spoken) -> None:
        """Append the owed token of a request that had to wait for its answer."""
        if request.sequence in self._requests and request.sequence.is_stalled and request.wakes_at is None:
            request.sequence.is_stalled = False
            self._speak(request)

    def _end_silences(self) -> None:
        now = time.monotonic()
        for sequence in [each for each in self._scheduler.active if each.is_stalled]:
            request = self._requests[sequence]
            if request.wakes_at is not None and request.wakes_at <= now:
                request.wakes_at = None
                self._resume(request)

    def _drop_cancelled(self) -> None:
        """Remove the sequences whose clients cancelled."""
        for sequence in self._looks.due():
            request = self._requests[sequence]
            if request.reply.is_cancelled():
                self._forget(request)
                request.reply.cancel()

    def _fail(self, requests: Iterable[Spoken], message: str) -> None:
        for request in requests:
            self._forget(request)
            request.reply.fail(message)

    def _forget(self, request: Spoken) -> None:
        self._trace.note("ended", request, lost=self._lost)
        del self._requests[request.sequence]
        self._scheduler.remove(request.sequence)
