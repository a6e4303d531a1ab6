"""Text in, text out: TensorRT-LLM's `ensemble` and `tensorrt_llm_bls`."""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from worker.engine.adapter import Outputs, Stop, bytes_tensor, sampling_tensors, text_in
from worker.engine.adapter_ids import stop_tensors
from worker.engine.deltas import Text
from worker.engine.request import Request, Tensors

_LOG_PROB_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class TextAdapter:
    """Sends the prompt as text.

    These models decode each response by itself, which tears characters apart that several tokens make. So
    a whole answer is asked for at once, unless the model decodes all it has said anew each time.

    Attributes:
        model_name: of the model.
        inputs: the tensors that it declares; others are not sent.
        kind: an ensemble hands its request's id on to the engine, the BLS model does not.
        engine_name: the model inside that generates.
        adds_bos: its preprocessing puts a beginning-of-text token in front.
        is_streaming: pieces are asked for as they come.
        accumulates: each response holds the whole text so far.
        takes_stop: the model inside takes a request to stop.
    """

    model_name: str
    inputs: frozenset[str]
    kind: Literal["ensemble", "bls"]
    engine_name: str
    adds_bos: bool
    is_streaming: bool
    accumulates: bool
    takes_stop: bool

    is_engine: bool = False
    takes_text: bool = True

    @property
    def is_reached(self) -> bool:
        """Closing the stream never reaches the engine; only a request to stop with the ensemble's id does."""
        return self.stop() is not None

    def tensors(self, request: Request) -> Tensors:
        """The request's tensors.

        Shapes:
            stop_words: BYTES `[1, words]`; every other one `[1, 1]`.
        """
        tensors: Tensors = {
            "text_input": bytes_tensor(request.text).reshape(1, 1),
            "max_tokens": np.array([[request.max_tokens]], dtype=np.int32),
            "bad_words": bytes_tensor("").reshape(1, 1),
            "stop_words": bytes_tensor("").reshape(1, 1),
            "stream": np.array([[self.is_streaming]]),
            "return_log_probs": np.array([[True]]),  # there is one for each token: nothing else counts them
            "end_id": np.array([[request.end_id]], dtype=np.int32),
            "pad_id": np.array([[request.pad_id]], dtype=np.int32),
        }
        if request.stops and not self.is_streaming:
            # Nobody could end it early. What the engine's token lists miss is cut off the text afterwards.
            tensors["stop_words"] = bytes_tensor(*request.stops).reshape(1, -1)
        tensors |= sampling_tensors(request.sampling, self.inputs, prefix="")
        return {name: value for name, value in tensors.items() if name in self.inputs}

    def stop(self) -> Stop | None:
        """A request of the same id to the model inside."""
        is_known_inside = self.kind == "ensemble" and self.takes_stop
        return Stop(self.engine_name, stop_tensors()) if is_known_inside else None

    def piece(self, outputs: Outputs) -> Text | None:
        """The text of a response, that of the first beam.

        Shapes:
            text_output: BYTES `[1, beams]` or `[beams]`.
            output_log_probs: FP32 `[1, beams, tokens]`, of this response; a single zero where there are none.
        """
        text = text_in(outputs.get("text_output", b""))
        if text is None:
            return None
        num_told = len(outputs.get("output_log_probs", b"")) // _LOG_PROB_BYTES
        # A single one for a whole answer stands for none.
        is_told = num_told > (0 if self.is_streaming else 1)
        return Text(text, num_tokens=num_told if is_told else None, is_whole=self.accumulates)
