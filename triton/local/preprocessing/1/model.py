"""Encoding text to token ids as TensorRT-LLM's `preprocessing` does."""

import json
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import triton_python_backend_utils as pb_utils

from .server import die_with_server
from .texts import PbRequest, PbResponse, load_tokenizer, parameters_of

# A numpy array, which Triton's stub passes without types.
Array: TypeAlias = Any


class TritonPythonModel:
    """The model that encodes prompts, and lists of words that end an answer or must not occur in it."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer."""
        self._release = die_with_server()
        parameters = parameters_of(args)
        self._tokenizer = load_tokenizer(parameters)
        named = json.loads((Path(parameters["tokenizer_dir"]) / "tokenizer_config.json").read_text())
        self._end_id = self._id(named, "eos_token", absent=-1)
        self._pad_id = self._id(named, "pad_token", absent=self._end_id)
        adds = parameters["add_special_tokens"].lower() == "true"
        bos_id = self._id(named, "bos_token", absent=-1) if adds else -1
        self._begin = [] if bos_id < 0 else [bos_id]

    def execute(self, requests: list[PbRequest]) -> list[PbResponse]:
        """Encode every request, or return its error."""
        responses = []
        for request in requests:
            try:
                responses.append(self._encode(request))
            except ValueError as error:
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
        return responses

    def finalize(self) -> None:
        """Stop all threads."""
        self._release()

    def _encode(self, request: PbRequest) -> PbResponse:
        query = _array(request, "QUERY")
        if query.shape[0] != 1:
            raise ValueError("inflight batching takes requests with a batch size of 1")
        # Control tokens in the text become control tokens, as in the real model.
        ids = self._begin + self._tokenizer.encode(_text(query.ravel()[0]), add_special_tokens=False).ids
        values = {
            "INPUT_ID": [ids],
            "REQUEST_INPUT_LEN": [[len(ids)]],
            "REQUEST_OUTPUT_LEN": _array(request, "REQUEST_OUTPUT_LEN"),
            "BAD_WORDS_IDS": self._words(request, "BAD_WORDS_DICT"),
            "STOP_WORDS_IDS": self._words(request, "STOP_WORDS_DICT"),
            "OUT_END_ID": _given(request, "END_ID", self._end_id),
            "OUT_PAD_ID": _given(request, "PAD_ID", self._pad_id),
        }
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.array(value, dtype=np.int32)) for name, value in values.items()]
        )

    def _words(self, request: PbRequest, name: str) -> Array:
        """Encode words: their ids one after the other, then where each ends, padded with -1.

        Shapes:
            returns `[1, 2, ids]`.
        """
        given = _array(request, name)
        texts = [] if given is None else [_text(word) for word in given.ravel()]
        words = [self._tokenizer.encode(text, add_special_tokens=False).ids for text in texts if text]
        ids = [token for word in words for token in word]
        ends = np.cumsum([len(word) for word in words], dtype=np.int32).tolist()
        return np.array([[ids, ends + [-1] * (len(ids) - len(ends))]], dtype=np.int32)

    def _id(self, named: dict[str, Any], name: str, *, absent: int) -> int:
        token = named.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        found = self._tokenizer.token_to_id(text) if isinstance(text, str) else None
        return absent if found is None else int(found)


def _array(request: PbRequest, name: str) -> Array:
    found = pb_utils.get_input_tensor_by_name(request, name)
    return None if found is None else found.as_numpy()


def _given(request: PbRequest, name: str, absent: int) -> Array:
    found = _array(request, name)
    return [[absent]] if found is None else found


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
