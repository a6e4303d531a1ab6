"""Text in, text out: TensorRT-LLM's `ensemble` and `tensorrt_llm_bls`."""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from jobs.prompts.abilities import SCORED, VECTORS
from worker.engine.abilities import Abilities
from worker.engine.deltas import TextDelta
from worker.engine.request import Request
from worker.engine.triton.adapter import (
    Outputs,
    Stop,
    Tensors,
    bytes_tensor,
    guide_tensors,
    lacking,
    sampling_tensors,
    text_in,
)
from worker.engine.triton.ids import stop_tensors

_LOG_PROB_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class TextAdapter:
    """The adapter that sends the prompt as text.

    These models decode each response on its own, which breaks characters that span several tokens. So the
    whole answer is requested at once, unless the model decodes its whole output again each time.

    Attributes:
        model_name: name of the model.
        inputs: names of the tensors that it declares; others are not sent.
        kind: an ensemble passes its request's id on to the engine, the BLS model does not.
        engine_name: name of the inner model that generates.
        adds_bos: its preprocessing prepends a beginning-of-text token.
        is_streaming: deltas are requested as they are generated.
        accumulates: each response holds the whole text so far.
        takes_stop: the inner model takes stop requests.
    """

    model_name: str
    inputs: frozenset[str]
    kind: Literal["ensemble", "bls"]
    engine_name: str
    adds_bos: bool
    is_streaming: bool
    accumulates: bool
    takes_stop: bool

    @property
    def abilities(self) -> Abilities:
        """Text both ways. Only a stop request with an ensemble's id reaches the engine."""
        return Abilities(
            takes_ids=False,
            gives_ids=False,
            is_streaming=self.is_streaming,
            adds_bos=self.adds_bos,
            takes_stop=self.stop() is not None,
            notices_cut=False,
            reports_own_end=False,
            lacks=self._lacks(),
            credits_reuse=False,
            keeps_state_in_slot=False,
        )

    def _lacks(self) -> frozenset[str]:
        # Only one end token; log probabilities of tokens that the text does not show.
        found = lacking(self.inputs, prefix="") | SCORED | VECTORS | {"stop_token_ids"}
        return found if "bad_words" in self.inputs else found | {"bad_words"}

    def tensors(self, request: Request) -> Tensors:
        """Build the request's tensors.

        Shapes:
            stop_words, bad_words: BYTES `[1, words]`; every other one `[1, 1]`.
        """
        tensors: Tensors = {
            "text_input": bytes_tensor(request.text).reshape(1, 1),
            "max_tokens": np.array([[request.max_tokens]], dtype=np.int32),
            "bad_words": bytes_tensor(*request.sampling.bad_words or [""]).reshape(1, -1),
            "stop_words": bytes_tensor("").reshape(1, 1),
            "stream": np.array([[self.is_streaming]]),
            "return_log_probs": np.array([[True]]),  # one for each token: the only count of them
            "end_id": np.array([[request.end_id]], dtype=np.int32),
            "pad_id": np.array([[request.pad_id]], dtype=np.int32),
        }
        if request.stops and not self.is_streaming:
            # We cannot end it early. What the engine's token lists miss is cut off the text afterwards.
            tensors["stop_words"] = bytes_tensor(*request.stops).reshape(1, -1)
        tensors |= sampling_tensors(request.sampling, self.inputs, prefix="") | guide_tensors(request.guide)
        return {name: value for name, value in tensors.items() if name in self.inputs}

    def weights(self, request: Request) -> Tensors:  # noqa: ARG002  # no request has an adapter
        """Return nothing: no request for this kind of model has an adapter."""
        return {}

    def stop(self) -> Stop | None:
        """Build a stop request with the same id to the inner model. Returns None if it cannot reach it."""
        is_reachable = self.kind == "ensemble" and self.takes_stop
        return Stop(self.engine_name, stop_tensors()) if is_reachable else None

    def delta(self, outputs: Outputs) -> TextDelta | None:
        """Read the text of a response's first beam.

        Shapes:
            text_output: BYTES `[1, beams]` or `[beams]`.
            output_log_probs: FP32 `[1, beams, tokens]`, of this response; a single zero if there are none.
        """
        text = text_in(outputs.get("text_output", b""))
        if text is None:
            return None
        num_log_probs = len(outputs.get("output_log_probs", b"")) // _LOG_PROB_BYTES
        # A single one for a whole answer means none.
        is_count = num_log_probs > (0 if self.is_streaming else 1)
        return TextDelta(text, num_tokens=num_log_probs if is_count else None, is_whole=self.accumulates)
