"""Decoding token ids to text as TensorRT-LLM's `postprocessing` does: each response on its own.

So a character that spans the tokens of two responses becomes two replacement characters. The real model does
so too, which is why clients let it decode whole answers or decode them themselves.
"""

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from .server import die_with_server
from .texts import PbRequest, PbResponse, load_tokenizer, parameters_of


class TritonPythonModel:
    """The model that decodes tokens, without state between requests."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer."""
        self._release = die_with_server()
        parameters = parameters_of(args)
        self._tokenizer = load_tokenizer(parameters)
        self._skips = parameters["skip_special_tokens"].lower() == "true"

    def execute(self, requests: list[PbRequest]) -> list[PbResponse]:
        """Decode every request."""
        return [self._decode(request) for request in requests]

    def finalize(self) -> None:
        """Stop all threads."""
        self._release()

    def _decode(self, request: PbRequest) -> PbResponse:
        """Decode one text per beam.

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
    """Pass the log probabilities on, or one zero for each as the real model does."""
    found = []
    for name, num_dims in (("CUM_LOG_PROBS", 2), ("OUTPUT_LOG_PROBS", 3)):
        given = pb_utils.get_input_tensor_by_name(request, name)
        value = np.zeros((1,) * num_dims, dtype=np.float32) if given is None else given.as_numpy()
        found.append(pb_utils.Tensor(f"OUT_{name}", value))
    return found
