"""What the stand-in answers to inputs that callers name: tables of logits, a count of draft tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .wire import PbRequest, made, read_input, scalar

# A real one has as many as the vocabulary.
NUM_LOGITS = 16


@dataclass(frozen=True)
class Extras:
    """The tensors of one request besides its tokens.

    Attributes:
        context: logits of the prompt's positions `[tokens, NUM_LOGITS]`; None: they were not asked for.
        generates: the answer's are asked for too.
        num_draft: draft tokens that came with it; None: none did.
    """

    context: NDArray[np.float32] | None = None
    generates: bool = False
    num_draft: int | None = None

    @property
    def is_any(self) -> bool:
        """True if a response may have any of them."""
        return self.context is not None or self.generates or self.num_draft is not None

    def tensors(self, ids: list[int], *, is_first: bool, final: bool) -> list[Any]:
        """Make those of a response: a single zero in place of a table that it lacks, as TensorRT-LLM does.

        Shapes:
            context_logits: FP32 `[1, tokens, logits]`, in the first response.
            generation_logits: FP32 `[1, 1, tokens, logits]`, of the tokens of this response.
            total_draft_tokens: INT32 `[1, 1]`, in the final one.
        """
        found = []
        if self.context is not None:
            table = self.context if is_first else np.zeros((1, 1), dtype=np.float32)
            found.append(made("context_logits", table[None]))
        if self.generates:
            table = one_hot(np.array(ids)) if ids else np.zeros((1, 1), dtype=np.float32)
            found.append(made("generation_logits", table[None, None]))
        if self.num_draft is not None and final:
            found.append(made("total_draft_tokens", np.array([[self.num_draft]], dtype=np.int32)))
        return found


def read_extras(request: PbRequest, prompt: NDArray[np.int32]) -> Extras:
    """Read what the request passes and asks for. The mean of its table of embeddings shifts the logits.

    Shapes:
        prompt_embedding_table: FP16 `[1, rows, hidden]`; draft_input_ids: INT32 `[1, tokens]`.
    """
    table, draft = read_input(request, "prompt_embedding_table"), read_input(request, "draft_input_ids")
    context = None
    if scalar(request, "return_context_logits", 0):
        shift = np.float32(0 if table is None else table.astype(np.float32).mean())
        context = one_hot(prompt) + shift
    return Extras(
        context,
        bool(scalar(request, "return_generation_logits", 0)),
        None if draft is None else int(draft.size),
    )


def one_hot(ids: NDArray[Any]) -> NDArray[np.float32]:
    """Score a token by the last digits of its id."""
    return np.eye(NUM_LOGITS, dtype=np.float32)[ids % NUM_LOGITS]
