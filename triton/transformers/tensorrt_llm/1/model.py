"""The entry point that Triton's Python backend loads: a `tensorrt_llm` model over transformers."""

import json
from dataclasses import replace

from . import wire
from .engine import Engine, Generated
from .families import GaugeFamilies
from .gauges import Gauges
from .intake import take
from .parameters import Parameters
from .remote import RemoteGenerator
from .scheduler import Scheduler, Sequence, block_counts
from .server import ServerWatch, die_with_server
from .speech import Ask
from .trace import Trace
from .wishes import read_end_id, read_sampling


class TritonPythonModel:
    """The model that passes Triton's requests to the engine; it never blocks on one."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the language model, then start the engine. The model has answered one request."""
        parameters = Parameters.of(json.loads(args["model_config"]))
        self._release = die_with_server()
        generator = RemoteGenerator(parameters)
        capacity = parameters.capacity
        self._samples = parameters.samples
        self._tokens_per_response = parameters.tokens_per_response
        self._seed_is_length = parameters.seed_is_length
        self._vocabulary = generator.vocabulary
        self._capacity = replace(capacity, max_seq_len=min(capacity.max_seq_len, generator.max_positions))
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self._engine = Engine(
            Scheduler(self._capacity),
            generator,
            Gauges(GaugeFamilies(labels).gauge),
            ServerWatch(parameters.http_port),
            Trace.of_environment(),
        )
        self._engine.start()

    def execute(self, requests: list[wire.PbRequest]) -> None:
        """Submit or refuse every request. Responses come later."""
        for request in requests:
            self._take(request)

    def finalize(self) -> None:
        """Stop all threads."""
        self._engine.close()
        self._release()

    def _take(self, request: wire.PbRequest) -> None:
        stream = wire.ResponseStream(request.get_response_sender(), with_log_probs=False)
        take(
            request,
            stream,
            self._capacity,
            begin=lambda ask: self._engine.submit(self._request(request, ask, stream)),
            stop=self._engine.stop,
        )

    def _request(self, request: wire.PbRequest, ask: Ask, stream: wire.ResponseStream) -> Generated:
        self._check_vocabulary(ask)
        sampling = read_sampling(request)
        if not (sampling.is_greedy or self._samples):
            raise wire.BadRequestError("this engine was started without sampling: it is greedy")
        if wire.wants_log_probs(request):
            raise wire.BadRequestError("the transformers engine has no return_log_probs")
        sequence = Sequence(prompt_tokens=len(ask.ids), max_tokens=ask.max_tokens)
        if wire.wants_perf_metrics(request):
            stream.counts = lambda: block_counts(self._capacity, sequence)
        return Generated(
            request_id=request.request_id(),
            ids=ask.ids.tolist(),
            sequence=sequence,
            reply=stream,
            end_id=read_end_id(request),
            sampling=sampling,
            stop_words=ask.stop_words,
            tokens_per_response=self._tokens_per_response if wire.streams(request) else None,
            ends_after=ask.seed if self._seed_is_length else None,
        )

    def _check_vocabulary(self, ask: Ask) -> None:
        if ask.ids.min() < 0 or ask.ids.max() >= self._vocabulary:
            # It would crash the kernel, and with it every running request.
            raise wire.BadRequestError(f"the model has {self._vocabulary} tokens in its vocabulary")
