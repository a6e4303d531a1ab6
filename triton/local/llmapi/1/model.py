"""A stand-in for NVIDIA's `llmapi` model: its tensors and behaviour, around the local `tensorrt_llm`.

Written from the source of that model (triton_backend/all_models/llmapi of TensorRT-LLM, 2025 and 2026), which
was never run here: each response holds the whole text so far, cancelled requests are polled, and a stop
request ends another one by its id and is itself answered with an error. Images, LoRA, penalties, several
answers and log probabilities are refused.
"""

import json
import threading
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
import triton_python_backend_utils as pb_utils

from . import inner
from .asked import PbRequest, input_of, read
from .generation import Engine, Output
from .server import die_with_server

# Objects of Triton's stub, which has no types.
PbSender: TypeAlias = Any
PbResponse: TypeAlias = Any

_CANCEL_PERIOD = 0.1  # seconds; `cancellation_check_period_ms` of model.yaml
_NAMES = {"kv_cache_reused_blocks": "kv_cache_reused_block"}
_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


@dataclass(eq=False)
class _Running:
    """One request and its responses, none of which follows the final one.

    Triton dies when it is asked about the cancellation of a request whose final response it sends at that
    moment (`TRITONBACKEND_ResponseFactoryIsCancelled` in server 2.51), so one lock serves both.
    """

    request: PbRequest
    sender: PbSender
    engine_id: str = field(default_factory=lambda: uuid4().hex)
    aborted: threading.Event = field(default_factory=threading.Event)
    is_over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, response: PbResponse, *, final: bool) -> None:
        with self.lock:
            if not self.is_over:
                self.is_over = final
                self.sender.send(response, _FINAL if final else 0)

    def is_cancelled(self) -> bool:
        with self.lock:
            return not self.is_over and bool(self.sender.is_cancelled())


class TritonPythonModel:
    """The model that follows every request in its own thread."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer and start to poll for cancelled requests."""
        config = json.loads(args["model_config"])
        self._is_decoupled = bool(config["model_transaction_policy"]["decoupled"])
        given = {name: value["string_value"] for name, value in config["parameters"].items()}
        self._engine = Engine(given["tokenizer_dir"], int(given["local_max_seq_len"]))
        self._running: set[_Running] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._release = die_with_server()
        threading.Thread(target=self._poll, name="cancellation", daemon=True).start()

    def execute(self, requests: list[PbRequest]) -> None:
        """Start a thread for every request."""
        for request in requests:
            act = self._stop if input_of(request, "stop", absent=False) else self._follow
            threading.Thread(target=act, args=(request,), daemon=True).start()

    def finalize(self) -> None:
        """Stop all threads."""
        self._closing.set()
        self._release()

    def _follow(self, request: PbRequest) -> None:
        running = _Running(request, request.get_response_sender())
        try:
            asked = read(request, is_decoupled=self._is_decoupled)
            with self._lock:
                self._running.add(running)
            for output in self._engine.generate(asked, running.engine_id, running.aborted):
                is_last = output.finish_reason is not None
                # As in the real model, a request that was stopped and does not stream is never answered.
                if asked.streaming or (is_last and not running.aborted.is_set()):
                    running.send(_response(request, output), final=is_last)
        except (pb_utils.TritonModelException, ValueError) as error:
            failed = pb_utils.TritonError(f"Error generating request: {error}")
            text = pb_utils.Tensor("text_output", np.array([b"N/A"], dtype=np.object_))
            running.send(pb_utils.InferenceResponse([text], failed), final=True)
        finally:
            with self._lock:
                self._running.discard(running)

    def _stop(self, request: PbRequest) -> None:
        """End the requests with this id; the answer is an error even then."""
        running = _Running(request, request.get_response_sender())
        if not request.request_id():
            missing = pb_utils.TritonError("A request id must be provided for request cancellation")
            running.send(pb_utils.InferenceResponse(error=missing), final=True)
            return
        with self._lock:
            stopped = [each for each in self._running if each.request.request_id() == request.request_id()]
            self._running.difference_update(stopped)
        for each in stopped:
            self._abort(each)
        running.send(_cancelled(), final=True)

    def _poll(self) -> None:
        """End the requests whose clients are gone."""
        while not self._closing.wait(_CANCEL_PERIOD):
            with self._lock:
                cancelled = [each for each in self._running if each.is_cancelled()]
                self._running.difference_update(cancelled)
            for each in cancelled:
                self._abort(each)
                each.send(_cancelled(), final=True)

    def _abort(self, running: _Running) -> None:
        running.aborted.set()
        inner.stop(running.engine_id)


def _cancelled() -> PbResponse:
    error = pb_utils.TritonError("Request cancelled by client", pb_utils.TritonError.CANCELLED)
    return pb_utils.InferenceResponse(error=error)


def _response(request: PbRequest, output: Output) -> PbResponse:
    """Build a response; a reason is the word `None` until there is one."""
    values = {"text_output": output.text}
    if input_of(request, "return_finish_reason", absent=False):
        values["finish_reason"] = str(output.finish_reason)
    if input_of(request, "return_stop_reason", absent=False):
        values["stop_reason"] = str(output.stop_reason)
    if output.counts and input_of(request, "sampling_param_return_perf_metrics", absent=False):
        # In digits, as the real model does, whatever its configuration declares.
        values |= {_NAMES.get(name, name): str(count) for name, count in output.counts.items()}
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, np.array([text.encode()], dtype=np.object_)) for name, text in values.items()]
    )
