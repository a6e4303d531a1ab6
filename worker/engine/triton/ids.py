"""Token ids in, token ids out: the model `tensorrt_llm` itself, with nothing around it."""

from dataclasses import dataclass

import numpy as np

from jobs.answers.log_probs import Score
from jobs.prompts.abilities import VECTORS
from worker.engine.abilities import Abilities
from worker.engine.deltas import TokenDelta
from worker.engine.request import Request
from worker.engine.triton.adapter import (
    Kind,
    Outputs,
    Stop,
    Tensors,
    guide_tensors,
    lacking,
    sampling_tensors,
)
from worker.engine.triton.lora import task_tensor, weight_tensors


@dataclass(frozen=True, slots=True)
class IdsAdapter:
    """The adapter that sends the counted ids; the only one with which a job can continue where it stopped.

    Attributes:
        model_name: usually `tensorrt_llm`.
        inputs: names of the tensors that it declares; others are not sent.
        reuses_prefix: its configuration says that it reuses KV blocks.
        lora_type: in which adapters' weights are sent; empty: it was not set up for adapters.
    """

    model_name: str
    inputs: frozenset[str]
    reuses_prefix: bool = True
    lora_type: str = ""

    kind: Kind = "ids"

    @property
    def abilities(self) -> Abilities:
        """Token ids both ways; a cut stream frees the engine, a stop request also ends the stream cleanly."""
        return Abilities(
            takes_ids=True,
            gives_ids=True,
            takes_stop=self.stop() is not None,
            keeps_stream=True,
            lacks=lacking(self.inputs, prefix="runtime_", takes_lora=bool(self.lora_type))
            | VECTORS
            | {"bad_words"},
            reuses_prefix=self.reuses_prefix,
            credits_reuse=False,  # only newer releases do
            keeps_state_in_slot=False,
            shares_prefix=self.reuses_prefix,
        )

    def tensors(self, request: Request) -> Tensors:
        """Build the request's tensors.

        Shapes:
            input_ids: INT32 `[1, tokens]`; every other one `[1, 1]`.

        Raises:
            EngineUnableError: its adapter cannot be sent.
        """
        tensors: Tensors = {
            "input_ids": request.ids.reshape(1, -1).astype(np.int32, copy=False),
            "input_lengths": np.array([[len(request.ids)]], dtype=np.int32),
            "request_output_len": np.array([[request.max_tokens]], dtype=np.int32),
            "streaming": np.array([[True]]),
            "return_perf_metrics": np.array([[True]]),  # what it had of the prompt, in the final response
            "end_id": np.array([[request.end_id]], dtype=np.int32),
            "pad_id": np.array([[request.pad_id]], dtype=np.int32),
        }
        if request.num_top is not None:
            tensors["return_log_probs"] = np.array([[True]])
        if request.adapter is not None:
            tensors |= task_tensor(request.adapter)
        tensors |= sampling_tensors(request.sampling, self.inputs, prefix="runtime_") | guide_tensors(
            request.guide
        )
        return {name: value for name, value in tensors.items() if name in self.inputs}

    def weights(self, request: Request) -> Tensors:
        """Read the weights of the request's adapter, for an engine that does not have them.

        Raises:
            EngineUnableError: they cannot be read, or the engine cannot take them.
        """
        return {} if request.adapter is None else weight_tensors(request.adapter, self.lora_type)

    def stop(self) -> Stop | None:
        """Build a stop request with the same id. Returns None for a model without the input `stop`."""
        return Stop(self.model_name, stop_tensors()) if "stop" in self.inputs else None

    def delta(self, outputs: Outputs) -> TokenDelta | None:
        """Read the token ids of a response's first beam.

        Shapes:
            output_ids: INT32 `[1, beams, tokens]`; sequence_length: INT32 `[1, beams]`, valid tokens.
            output_log_probs: FP32 `[1, beams, tokens]`, of this response or of all so far, if requested.

        Raises:
            ValueError: log probabilities were not returned for all tokens.
        """
        ids = np.frombuffer(outputs.get("output_ids", b""), dtype=np.int32)
        lengths = np.frombuffer(outputs.get("sequence_length", b""), dtype=np.int32)
        found: list[int] = (ids[: lengths[0]] if len(lengths) else ids).tolist()
        if not found:
            return None
        log_probs = np.frombuffer(outputs.get("output_log_probs", b""), dtype=np.float32)
        if not len(log_probs):
            return TokenDelta(found)
        if len(log_probs) < len(found):
            raise ValueError(f"{len(log_probs)} log probabilities for {len(found)} tokens")
        return TokenDelta(found, [Score(each) for each in log_probs[-len(found) :].tolist()])


def stop_tensors() -> Tensors:
    """Build the tensors that end the request with the same id. Only `stop` is read; the rest are required."""
    one = np.array([[1]], dtype=np.int32)
    return {"stop": np.array([[True]]), "input_ids": one, "input_lengths": one, "request_output_len": one}
