"""Text in, text out: the tensors of Triton's vLLM backend, which have no batch dimension."""

import json
from dataclasses import dataclass

import numpy as np

from jobs.prompts.abilities import GUIDED, LORA, SCORED, VECTORS
from worker.engine.abilities import Abilities
from worker.engine.deltas import TextDelta
from worker.engine.request import Request
from worker.engine.triton.adapter import Kind, Outputs, Stop, Tensors, bytes_tensor, text_delta, text_in


@dataclass(frozen=True, slots=True)
class VllmAdapter:
    """The adapter to vLLM: sends text and receives whole characters; newer releases also count tokens.

    Attributes:
        model_name: name of the model.
        inputs: names of the tensors that it declares; others are not sent.
    """

    model_name: str
    inputs: frozenset[str]

    kind: Kind = "vllm"

    @property
    def abilities(self) -> Abilities:
        """Text both ways. vLLM adds special tokens to text, and notices a cut stream at its next response."""
        return Abilities(
            takes_ids=False,
            gives_ids=False,
            adds_bos=True,
            # Which fields guide an answer depends on the release, and others are ignored. Its log
            # probabilities are of tokens that its text does not show.
            lacks=GUIDED | SCORED | VECTORS | {"logit_bias", LORA},
            credits_reuse=True,
            keeps_state_in_slot=False,
        )

    def tensors(self, request: Request) -> Tensors:
        """Build the request's tensors.

        Shapes:
            every one `[1]`.
        """
        tensors: Tensors = {
            "text_input": bytes_tensor(request.text),
            "stream": np.array([True]),
            "sampling_parameters": bytes_tensor(json.dumps(_parameters(request))),
            "exclude_input_in_output": np.array([True]),
            "return_finish_reason": np.array([True]),
            "return_num_output_tokens": np.array([True]),
        }
        return {name: value for name, value in tensors.items() if name in self.inputs}

    def weights(self, request: Request) -> Tensors:  # noqa: ARG002  # no request has an adapter
        """Return nothing: no request for this kind of model has an adapter."""
        return {}

    def stop(self) -> Stop | None:
        """Return None: vLLM has no stop request, so the stream is cut."""
        return None

    def delta(self, outputs: Outputs) -> TextDelta | None:
        """Read a response's text, and its token count and finish reason if present.

        Shapes:
            text_output, finish_reason: BYTES `[1]`; num_output_tokens: UINT32 `[1]`, of this response.
        """
        text = text_in(outputs.get("text_output", b""))
        if text is None:
            return None
        counts = np.frombuffer(outputs.get("num_output_tokens", b""), dtype=np.uint32)
        reason = text_in(outputs.get("finish_reason", b""))
        return text_delta(text, reason=reason, num_tokens=int(counts[0]) if len(counts) else None)


def _parameters(request: Request) -> dict[str, object]:
    """Build the sampling parameters. vLLM's default temperature is 1, so it is always sent.

    The stop strings are sent too: vLLM matches them in text as we do, so it ends by itself and reports why.
    """
    given = request.sampling
    found: dict[str, object] = {
        "max_tokens": request.max_tokens,
        "temperature": 0.0,
        "min_tokens": given.min_tokens,
        "stop": list(request.stops) or None,
        "stop_token_ids": list(given.stop_token_ids) or None,
        "bad_words": list(given.bad_words) or None,
        "ignore_eos": given.ignores_end or None,
        **given.penalties,
    }
    if not given.is_greedy:
        seed = None if given.seed is None else given.seed % 2**63  # vLLM reads -1 as no seed
        picking = {"temperature": given.temperature, "top_p": given.top_p, "top_k": given.top_k or None}
        picking["min_p"] = given.min_p
        found |= picking | {"seed": seed}
    return {name: value for name, value in found.items() if value is not None}
