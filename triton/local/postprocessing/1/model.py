"""Token ids into text, as TensorRT-LLM's `postprocessing` does it: each response by itself.

So a character that is spread over the tokens of two responses becomes two replacement characters. That is
a trait of the real one, and the reason why clients let it decode whole answers or do so themselves.
"""

import threading
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from .server import die_with_server
from .texts import PbRequest, PbResponse, load_tokenizer, parameters_of


class TritonPythonModel:
    """Decodes tokens; remembers nothing between requests."""

    def initialize(self, args: dict[str, str]) -> None:
        """The tokenizer is loaded."""
        self._closing = threading.Event()
        die_with_server(self._closing)
        parameters = parameters_of(args)
        self._tokenizer = load_tokenizer(parameters)
        self._skips = parameters["skip_special_tokens"].lower() == "true"

    def execute(self, requests: list[PbRequest]) -> list[PbResponse]:
        """The text of every request."""
        return [self._decode(request) for request in requests]

    def finalize(self) -> None:
        """No thread runs any more."""
        self._closing.set()

    def _decode(self, request: PbRequest) -> PbResponse:
        """One text per beam.

        Shapes:
            TOKENS_BATCH: INT32 `[1, beams, tokens]`; SEQUENCE_LENGTH: INT32 `[1, beams]`.
            OUTPUT: BYTES `[1, beams]`.
        """
        (beams,) = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
        (lengths,) = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
        texts = [
            self._tokenizer.decode(tokens[:length].tolist(), skip_special_tokens=self._skips).encode()
            for tokens, length in zip(beams, lengths, strict=True)
        ]
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUTPUT", np.array([texts], dtype=np.object_)), *_passed_on(request)]
        )


def _passed_on(request: PbRequest) -> list[Any]:
    """The log probabilities as they came, or one zero for each, as the real one does."""
    found = []
    for name, num_dims in (("CUM_LOG_PROBS", 2), ("OUTPUT_LOG_PROBS", 3)):
        given = pb_utils.get_input_tensor_by_name(request, name)
        value = np.zeros((1,) * num_dims, dtype=np.float32) if given is None else given.as_numpy()
        found.append(pb_utils.Tensor(f"OUT_{name}", value))
    return found
