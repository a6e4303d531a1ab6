"""The entry point that Triton's Python backend loads: a stand-in for the `tensorrt_llm` model, on a CPU."""

import json
from concurrent.futures import ThreadPoolExecutor

from . import wire
from .adapters import AdaptedSpeaker, AdapterCache
from .batching import BatchingLoop
from .extras import read_extras
from .families import GaugeFamilies
from .gauges import Gauges
from .intake import take
from .parameters import Parameters
from .scheduler import Scheduler, Sequence, block_counts
from .server import ServerWatch, die_with_server
from .speech import Ask, Speaker, Speech, prepare
from .spoken import Spoken
from .trace import Trace


class TritonPythonModel:
    """The model that passes Triton's requests to the batching loop; it never blocks on one."""

    def initialize(self, args: dict[str, str]) -> None:
        """Start the engine, idle and ready."""
        parameters = Parameters.of(json.loads(args["model_config"]))
        self._capacity = parameters.capacity
        self._tokens_per_response = parameters.tokens_per_response
        self._always_log_probs = parameters.always_log_probs
        self._adapters = AdapterCache()
        self._reuses_blocks = parameters.reuses_blocks
        # One thread: answers are computed next to the loop, in order of arrival.
        self._author = ThreadPoolExecutor(max_workers=1, thread_name_prefix="author")
        self._speaker = self._author.submit(parameters.speaker)
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self._loop = BatchingLoop(
            Scheduler(self._capacity, credits_reuse=parameters.credits_reuse),
            parameters.roofline,
            Gauges(GaugeFamilies(labels).gauge),
            ServerWatch(parameters.http_port),
            Trace.of_environment(),
            time_scale=parameters.time_scale,
        )
        self._release = die_with_server()
        self._loop.start()

    def execute(self, requests: list[wire.PbRequest]) -> None:
        """Submit or refuse every request. Responses come later."""
        for request in requests:
            self._take(request)

    def finalize(self) -> None:
        """Stop all threads."""
        self._author.shutdown(wait=False, cancel_futures=True)
        self._loop.close()
        self._release()

    def _take(self, request: wire.PbRequest) -> None:
        stream = wire.ResponseStream(
            request.get_response_sender(),
            with_log_probs=self._always_log_probs or wire.wants_log_probs(request),
        )
        take(
            request,
            stream,
            self._capacity,
            begin=lambda ask: self._loop.submit(self._request(request, ask, stream)),
            stop=self._loop.stop,
        )

    def _request(self, request: wire.PbRequest, ask: Ask, stream: wire.ResponseStream) -> Spoken:
        adapter = self._adapters.take(request)
        ids = ask.ids if self._reuses_blocks and adapter is None else None
        sequence = Sequence(prompt_tokens=len(ask.ids), max_tokens=ask.max_tokens, ids=ids)
        if wire.wants_perf_metrics(request):
            stream.counts = lambda: block_counts(self._capacity, sequence)
        if (extras := read_extras(request, ask.ids)).is_any:
            stream.extras = extras.tensors
        return Spoken(
            request_id=request.request_id(),
            sequence=sequence,
            reply=stream,
            speech=self._author.submit(self._speech, ask, adapter),
            tokens_per_response=self._tokens_per_response if wire.streams(request) else None,
        )

    def _speech(self, ask: Ask, adapter: int | None) -> Speech:
        speaker: Speaker = self._speaker.result()
        return prepare(speaker if adapter is None else AdaptedSpeaker(speaker, adapter), ask)
