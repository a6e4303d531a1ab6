"""Text in, text out by calling the other models, as TensorRT-LLM's `tensorrt_llm_bls` does.

As there, a request is followed to its end even if its client disconnects: cancelling does not reach the
engine.
"""

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import triton_python_backend_utils as pb_utils

from . import inner
from .server import die_with_server

# Objects of Triton's stub, which has no types.
PbRequest: TypeAlias = Any
PbResponse: TypeAlias = Any
PbTensor: TypeAlias = Any
Array: TypeAlias = Any

_TO_PREPROCESSING = {
    "text_input": "QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
}
_PREPROCESSED = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}
_TO_ENGINE = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "temperature": "temperature",
    "length_penalty": "len_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_length",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "random_seed",
    "return_log_probs": "return_log_probs",
    "beam_width": "beam_width",
    "stream": "streaming",
}


_DECODED = {
    "OUTPUT": "text_output",
    "OUT_CUM_LOG_PROBS": "cum_log_probs",
    "OUT_OUTPUT_LOG_PROBS": "output_log_probs",
}
_GENERATED = ["output_ids", "sequence_length", "cum_log_probs", "output_log_probs"]


class TritonPythonModel:
    """The model; each of its instances handles one request at a time."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the parameters. Other models do the work, so nothing is loaded."""
        self._release = die_with_server()
        given = json.loads(args["model_config"])["parameters"]
        self._accumulates = given["accumulate_tokens"]["string_value"].lower() == "true"

    def execute(self, requests: list[PbRequest]) -> None:
        """Answer every request to its end."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                for tensors in self._answers(request):
                    sender.send(pb_utils.InferenceResponse(tensors))
            except pb_utils.TritonModelException as error:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
            # As in the real model, the end is a separate response without a tensor.
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self) -> None:
        """Stop all threads."""
        self._release()

    def _answers(self, request: PbRequest) -> Iterator[list[PbTensor]]:
        """Yield the tensors for each engine response; with `accumulate_tokens`, for all tokens so far."""
        preprocessed = _call("preprocessing", _renamed(request, _TO_PREPROCESSING), list(_PREPROCESSED))
        inputs = [
            pb_utils.Tensor(_PREPROCESSED[tensor.name()], tensor.as_numpy())
            for tensor in preprocessed.output_tensors()
        ]
        tokens = np.empty((1, 1, 0), dtype=np.int32)
        for response in inner.responses(inputs + _renamed(request, _TO_ENGINE), _GENERATED):
            new = _ids(_checked(response))
            tokens = np.concatenate([tokens, new], axis=2) if self._accumulates else new
            decoded = _call(
                "postprocessing",
                [
                    pb_utils.Tensor("TOKENS_BATCH", tokens),
                    pb_utils.Tensor("SEQUENCE_LENGTH", np.array([[tokens.shape[2]]], dtype=np.int32)),
                    *_log_probs(response),
                ],
                list(_DECODED),
            )
            yield [
                pb_utils.Tensor(_DECODED[tensor.name()], tensor.as_numpy())
                for tensor in decoded.output_tensors()
            ]


def _renamed(request: PbRequest, names: dict[str, str]) -> list[PbTensor]:
    """Return the request's tensors under another model's names."""
    found = ((pb_utils.get_input_tensor_by_name(request, name), to) for name, to in names.items())
    return [pb_utils.Tensor(to, tensor.as_numpy()) for tensor, to in found if tensor is not None]


def _call(model: str, tensors: list[PbTensor], outputs: list[str]) -> PbResponse:
    asked = pb_utils.InferenceRequest(model_name=model, inputs=tensors, requested_output_names=outputs)
    return _checked(asked.exec())


def _log_probs(response: PbResponse) -> list[PbTensor]:
    """Return the engine's log probabilities under the names that postprocessing uses."""
    return [
        pb_utils.Tensor(tensor.name().upper(), tensor.as_numpy())
        for tensor in response.output_tensors()
        if tensor.name().endswith("log_probs")
    ]


def _ids(response: PbResponse) -> Array:
    """Read the token ids of an engine response.

    Raises:
        TritonModelException: it holds none. In Triton 2.51 that is the only sign of an error.
    """
    found = pb_utils.get_output_tensor_by_name(response, "output_ids")
    if found is None:
        raise pb_utils.TritonModelException("the engine failed")
    return found.as_numpy()


def _checked(response: PbResponse) -> PbResponse:
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return response
