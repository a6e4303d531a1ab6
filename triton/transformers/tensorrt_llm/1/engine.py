"""The engine's loop: one thread between Triton's requests and the process that generates.

Transformers allocates blocks as a sequence grows and evicts when none is left. This loop keeps TensorRT-LLM's
`guaranteed_no_evict` on top: a sequence starts only when every block it may ever need is free.
"""

import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .gauges import Gauges
from .remote import Died, Gone, RemoteGenerator, Said, Used
from .requests import Looks, Request
from .sampling import Sampling
from .scheduler import Iteration, Scheduler, Sequence
from .server import ServerWatch
from .speech import ends_with
from .trace import Trace

_CANCEL_PERIOD = 0.1  # seconds between polls of the clients' cancels, TensorRT-LLM's default
_BUSY = Iteration(chunks={}, yielding=[], resident_kv=0, attention_pairs=0)


@dataclass(eq=False, kw_only=True)
class Generated(Request):
    """A request and the parameters of its generation.

    Attributes:
        ids: its prompt.
        end_id: the token that ends it; -1 for none.
        sampling: its sampling parameters.
        stop_words: token sequences after which it ends.
        ends_after: number of tokens after which it ends as if the last were the end token; None for never.
        name: the generator's name for it.
        said: all its tokens so far, without the end token.
    """

    ids: list[int]
    end_id: int
    sampling: Sampling
    stop_words: tuple[tuple[int, ...], ...]
    ends_after: int | None = None
    name: str = ""
    said: list[int] = field(default_factory=list)


class Engine:
    """The loop that runs every submitted request until closed. Its public methods are thread-safe."""

    def __init__(
        self,
        scheduler: Scheduler,
        generator: RemoteGenerator,
        gauges: Gauges,
        server: ServerWatch,
        trace: Trace,
    ) -> None:
        self._scheduler = scheduler
        self._generator = generator
        self._gauges = gauges
        self._server = server
        self._trace = trace
        self._requests: dict[Sequence, Generated] = {}
        self._running: dict[str, Generated] = {}
        self._leaving: dict[Generated, Callable[[], None]] = {}
        self._names = itertools.count()
        self._closing = threading.Event()
        self._looks = Looks(scheduler, _CANCEL_PERIOD)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the loop, with gauges that show an idle engine."""
        self._gauges.show(self._scheduler, None)
        self._thread.start()

    def submit(self, request: Generated) -> None:
        """Queue the request at the next iteration boundary."""
        self._trace.note("came", request)
        self._generator.events.put(lambda: self._add(request))

    def stop(self, request_id: str) -> None:
        """End every request with this id soon, as if it were complete."""
        self._generator.events.put(lambda: self._stop(request_id))

    def close(self) -> None:
        """Stop the loop and the generating process, and fail open requests."""
        self._closing.set()
        self._generator.events.put(lambda: None)
        self._thread.join()
        self._generator.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 the thread's entry point: a fault fails all
                self._fail_all(f"the engine failed: {error!r}")
        self._fail_all("the engine is shutting down")

    def _turn(self) -> None:
        """Handle events, then poll for what sends no event: cancels and a stopping server."""
        for event in self._events():
            self._take(event)
        self._poll()
        self._admit()
        self._gauges.show(self._scheduler, _BUSY if self._scheduler.active else None)

    def _events(self) -> Iterable[object]:
        events = self._generator.events
        try:
            yield events.get(timeout=_CANCEL_PERIOD if self._requests else None)
            while True:
                yield events.get_nowait()
        except queue.Empty:
            return

    def _add(self, request: Generated) -> None:
        self._requests[request.sequence] = request
        self._scheduler.add(request.sequence)

    def _admit(self) -> None:
        """Start every sequence that can start now."""
        num_started = self._scheduler.admit()
        for sequence in self._scheduler.active[-num_started:] if num_started else ():
            request = self._requests[sequence]
            request.name = f"{next(self._names)}"
            self._running[request.name] = request
            self._trace.note("began", request)
            self._generator.begin(
                request.name,
                request.ids,
                max_tokens=min(sequence.max_tokens, request.ends_after or sequence.max_tokens),
                end_id=request.end_id,
                sampling=request.sampling,
            )

    def _take(self, event: object) -> None:
        match event:
            case Said():
                self._receive(event)
            case Used(blocks):
                self._scheduler.used_elsewhere = blocks
            case Gone(name):
                self._let_go(name)
            case Died(reason):
                self._fail_all(f"the engine failed: {reason}")
                self._restart()
            case _ if callable(event):
                event()

    def _restart(self) -> None:
        """Start a new generating process. If that fails, end this process, which Triton detects."""
        try:
            self._generator.restart()
        except RuntimeError as error:
            print(f"the engine does not start again: {error}", file=sys.stderr, flush=True)  # noqa: T201  the log
            os._exit(1)

    def _receive(self, event: Said) -> None:
        """Send a sequence's new tokens or error to the request's client."""
        request = self._running.get(event.name)
        if request is None or request in self._leaving:
            return
        self._scheduler.found_elsewhere(request.sequence, event.num_cached)
        if event.error is not None:
            self._forget(request)
            request.reply.fail(f"the engine failed: {event.error}")
            return
        for token in event.tokens:
            if self._append(request, token):
                return
        request.send()

    def _append(self, request: Generated, token: int) -> bool:
        """Append a token. Returns True if it was the last."""
        sequence = request.sequence
        sequence.num_prefilled, sequence.num_generated = sequence.prompt_tokens, len(request.said) + 1
        if token == request.end_id or sequence.num_generated == request.ends_after:
            self._forget(request)
            request.end_with_end_token()
            return True
        request.said.append(token)
        request.say(token)
        if len(request.said) >= sequence.max_tokens:
            self._forget(request)
            request.end()
            return True
        if any(ends_with(request.said, word) for word in request.stop_words):
            self._leave(request, request.end)
            return True
        return False

    def _stop(self, request_id: str) -> None:
        for request in [each for each in self._requests.values() if each.request_id == request_id]:
            self._leave(request, request.end_with_end_token)

    def _leave(self, request: Generated, farewell: Callable[[], None]) -> None:
        """End the request early. Its client gets the final response once its blocks are free."""
        if request in self._leaving:
            return
        if not request.name:
            self._forget(request)
            farewell()
            return
        self._leaving[request] = farewell
        self._generator.cancel(request.name)

    def _let_go(self, name: str) -> None:
        """Send the final response of a request that ended early. Its blocks are free now."""
        request = self._running.get(name)
        if request is not None and request in self._leaving:
            farewell = self._leaving.pop(request)
            self._forget(request)
            farewell()

    def _poll(self) -> None:
        """End the requests whose clients cancelled. Fail all of them if the server is stopping."""
        if self._requests and self._server.is_stopping():
            self._fail_all("the server is shutting down")
        for sequence in self._looks.due():
            request = self._requests[sequence]
            if request.reply.is_cancelled():
                self._leave(request, request.reply.cancel)

    def _fail_all(self, message: str) -> None:
        for request in list(self._requests.values()):
            if request.name:
                self._generator.cancel(request.name)
            self._leaving.pop(request, None)
            self._forget(request)
            request.reply.fail(message)

    def _forget(self, request: Generated) -> None:
        del self._requests[request.sequence]
        self._running.pop(request.name, None)
        self._scheduler.remove(request.sequence)
        self._trace.note("ended", request)
