"""Text in, text out: NVIDIA's `llmapi` model, the LLM API of TensorRT-LLM on Triton's Python backend.

It is usually called `tensorrt_llm`, as the model of the C++ backend is; only their tensors differ.
Source: triton_backend/all_models/llmapi in TensorRT-LLM's repository (2025 and 2026), run by hand under
Triton with a fake LLM behind it.
"""

from dataclasses import dataclass

import numpy as np

from jobs.errors import EngineUnableError
from jobs.prompts.abilities import ABILITIES, GUIDED, LORA, SCORED
from worker.engine.abilities import Abilities
from worker.engine.deltas import TextDelta
from worker.engine.request import Request, Sampling, WantedAdapter
from worker.engine.triton.adapter import (
    Kind,
    Outputs,
    Stop,
    Tensors,
    bytes_tensor,
    text_delta,
    text_in,
)

_PREFIX = "sampling_param_"
_LORA_INPUTS = frozenset({"lora_id", "lora_name", "lora_path"})


@dataclass(frozen=True, slots=True)
class LlmapiAdapter:
    """The adapter to the LLM API: sends text, and receives the whole text so far with each response.

    Nothing counts its tokens. Stop strings are not sent: the model hands them to its tokenizer as bytes, and
    token lists miss other spellings.

    Attributes:
        model_name: name of the model.
        inputs: names of the tensors that it declares; others are not sent.
        is_streaming: a stream has more than one response.
        is_decoupled: a request may ask for a stream.
    """

    model_name: str
    inputs: frozenset[str]
    is_streaming: bool
    is_decoupled: bool = True

    kind: Kind = "llmapi"

    @property
    def abilities(self) -> Abilities:
        """Text both ways. The tokenizer adds special tokens; the model polls for cut streams every 100 ms."""
        return Abilities(
            takes_ids=False,
            gives_ids=False,
            is_streaming=self.is_streaming,
            adds_bos=True,
            takes_stop=self.stop() is not None,
            lacks=self._lacks(),
            credits_reuse=False,  # only newer releases do
            keeps_state_in_slot=False,
        )

    def _lacks(self) -> frozenset[str]:
        taken = {each.removeprefix(_PREFIX) for each in self.inputs}
        taken |= {LORA} if self.inputs >= _LORA_INPUTS else set()
        return ABILITIES - taken | GUIDED | SCORED

    def tensors(self, request: Request) -> Tensors:
        """Build the request's tensors.

        Shapes:
            every one `[1]`.

        Raises:
            EngineUnableError: its adapter cannot be named to the engine.
        """
        tensors: Tensors = {
            "text_input": bytes_tensor(request.text),
            "streaming": np.array([self.is_decoupled]),
            f"{_PREFIX}max_tokens": np.array([request.max_tokens], dtype=np.int32),
            f"{_PREFIX}exclude_input_from_output": np.array([True]),
            "return_finish_reason": np.array([True]),
            f"{_PREFIX}return_perf_metrics": np.array([True]),  # what it had of the prompt
        }
        if request.adapter is not None:
            tensors |= _adapter(request.adapter)
        tensors |= _sampling(request.sampling)
        return {name: value for name, value in tensors.items() if name in self.inputs}

    def weights(self, request: Request) -> Tensors:  # noqa: ARG002  # of the protocol
        """Return nothing: the engine reads the weights of an adapter from its path."""
        return {}

    def stop(self) -> Stop | None:
        """Build a stop request with the same id; its own answer is an error, which means success.

        Returns:
            None if only cutting the stream ends a request: a stopped one that does not stream is never
            answered.
        """
        if not self.is_decoupled or "stop" not in self.inputs:
            return None
        return Stop(self.model_name, {"text_input": bytes_tensor(""), "stop": np.array([True])})

    def delta(self, outputs: Outputs) -> TextDelta | None:
        """Read a response's text and its finish reason, which is the word `None` until there is one.

        Shapes:
            text_output, finish_reason: BYTES `[1]`.
        """
        text = text_in(outputs.get("text_output", b""))
        if text is None:
            return None
        return text_delta(text, reason=text_in(outputs.get("finish_reason", b"")), is_whole=True)


def _adapter(wanted: WantedAdapter) -> Tensors:
    """Build the tensors that name an adapter: the engine reads it from its path, and caches it by its number.

    Raises:
        EngineUnableError: it is not a directory in PEFT's form.
    """
    if wanted.format != "peft" or "://" in wanted.source:
        raise EngineUnableError(
            f"The engine reads adapters from a directory in PEFT's form; {wanted.name} is {wanted.source}."
        )
    return {
        "lora_id": np.array([wanted.number], dtype=np.uint64),
        "lora_name": bytes_tensor(wanted.name),
        "lora_path": bytes_tensor(wanted.source),
    }


def _sampling(given: Sampling) -> Tensors:
    """Build the sampling tensors. Without a top-p the engine's own is 0, which is greedy."""
    tensors: Tensors = {
        f"{_PREFIX}{name}": np.array([value], dtype=np.float32) for name, value in given.penalties.items()
    }
    if given.is_greedy:
        return tensors | {f"{_PREFIX}top_k": np.array([1], dtype=np.int32)}
    top_p = 1.0 if given.top_p is None else given.top_p
    tensors |= {
        f"{_PREFIX}temperature": np.array([given.temperature], dtype=np.float32),
        f"{_PREFIX}top_k": np.array([given.top_k or 0], dtype=np.int32),
        f"{_PREFIX}top_p": np.array([top_p], dtype=np.float32),
    }
    if given.seed is not None:
        tensors[f"{_PREFIX}seed"] = np.array([given.seed % 2**64], dtype=np.uint64)
    return tensors
