"""The entry point that Triton's Python backend loads: a stand-in for the `tensorrt_llm` model, on a CPU."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

from . import wire
from .batching import BatchingLoop
from .families import GaugeFamilies
from .gauges import Gauges
from .parameters import Parameters
from .requests import Request
from .scheduler import Scheduler, Sequence
from .server import ServerWatch, die_with_server
from .speech import Ask, Speaker, Speech, prepare
from .trace import Trace


class TritonPythonModel:
    """Takes requests from Triton and hands them to the batching loop; never blocks on one."""

    def initialize(self, args: dict[str, str]) -> None:
        """The engine is idle and ready."""
        parameters = Parameters.of(json.loads(args["model_config"]))
        self._capacity = parameters.capacity
        self._tokens_per_response = parameters.tokens_per_response
        self._always_log_probs = parameters.always_log_probs
        # One thread: what is said is worked out beside the loop, in the order of arrival.
        self._author = ThreadPoolExecutor(max_workers=1, thread_name_prefix="author")
        self._speaker = self._author.submit(parameters.speaker)
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self._loop = BatchingLoop(
            Scheduler(self._capacity),
            parameters.roofline,
            Gauges(GaugeFamilies(labels).gauge),
            ServerWatch(parameters.http_port),
            Trace.of_environment(),
            time_scale=parameters.time_scale,
        )
        self._closing = threading.Event()
        die_with_server(self._closing)
        self._loop.start()

    def execute(self, requests: list[wire.PbRequest]) -> None:
        """Every request has been handed over or refused; responses come later."""
        for request in requests:
            self._take(request)

    def finalize(self) -> None:
        """No thread runs any more."""
        self._author.shutdown(wait=False, cancel_futures=True)
        self._loop.close()
        self._closing.set()

    def _take(self, request: wire.PbRequest) -> None:
        stream = wire.ResponseStream(
            request.get_response_sender(),
            with_log_probs=self._always_log_probs or wire.wants_log_probs(request),
        )
        try:
            if wire.is_stop(request):
                self._stop(request.request_id())
                stream.finish()
                return
            ask = wire.read_ask(request)
            self._check_length(ask)
        except wire.BadRequestError as error:
            stream.refuse(str(error))
            return
        self._loop.submit(
            Request(
                request_id=request.request_id(),
                sequence=Sequence(prompt_tokens=len(ask.ids), max_tokens=ask.max_tokens),
                reply=stream,
                speech=self._author.submit(self._speech, ask),
                tokens_per_response=self._tokens_per_response if wire.streams(request) else None,
            )
        )

    def _stop(self, request_id: str) -> None:
        if not request_id:
            raise wire.BadRequestError("Cannot send a stop request without a request_id")
        self._loop.stop(request_id)

    def _check_length(self, ask: Ask) -> None:
        limit = self._capacity.longest_sequence - 1
        if len(ask.ids) > limit:
            raise wire.BadRequestError(
                f"Prompt length ({len(ask.ids)}) exceeds maximum input length ({limit})."
            )

    def _speech(self, ask: Ask) -> Speech:
        speaker: Speaker = self._speaker.result()
        return prepare(speaker, ask)
