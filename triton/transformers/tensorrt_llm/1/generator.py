"""Transformers' continuous batching over one language model: what of it this engine uses."""

import queue
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import torch
from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from . import attention
from .parameters import Parameters
from .sampling import Sampling

Output: TypeAlias = Any  # transformers' GenerationOutput
Model: TypeAlias = Any

# Transformers may hold this many blocks more for a sequence than its tokens fill.
_SPARE_BLOCKS: Final = 2
_FIRST_ANSWER_SECONDS: Final = 300.0


class Generator:
    """Generates tokens for sequences that fit together; the caller sees to it that they do.

    `events` brings, in order, transformers' outputs and whatever else was put there.
    """

    def __init__(self, parameters: Parameters) -> None:
        """The model is in memory and has answered once, so there is room for all that it may hold.

        Raises:
            RuntimeError: it cannot be loaded, or does not run.
        """
        self.events: queue.Queue[Any] = queue.Queue()
        self._parameters = parameters
        self._model = load_model(parameters)
        self._vocabulary: int = self._model.config.get_text_config().vocab_size
        self._manager = self._start()
        self._try_out()

    @property
    def max_positions(self) -> int:
        """Tokens of the longest sequence that the model was made for."""
        return int(getattr(self._model.config.get_text_config(), "max_position_embeddings", 2**31))

    def begin(
        self, name: str, ids: Sequence[int], *, max_tokens: int, end_id: int, sampling: Sampling
    ) -> None:
        """The sequence takes part from the next iteration on; each of its tokens brings an output."""
        self._manager.add_request(
            ids,
            request_id=name,
            max_new_tokens=max_tokens,
            streaming=True,
            eos_token_id=[end_id],
            **self._picking(sampling),
        )

    def cancel(self, name: str) -> None:
        """The sequence leaves at the next iteration boundary, without a word."""
        self._manager.cancel_request(name)

    def holds(self, name: str) -> bool:
        """Whether the sequence may still hold blocks."""
        processor = self._manager.batch_processor
        if processor is None or not self.is_alive:
            return False
        if not self._manager.cancel_queue.empty():
            return True
        return name in processor.scheduler.active_requests or name in processor.scheduler.waiting_requests

    @property
    def is_alive(self) -> bool:
        """Whether it generates; if not, all that ran has failed."""
        return bool(self._manager.is_running())

    def restart(self) -> None:
        """It generates again, with an empty cache.

        Raises:
            RuntimeError: it does not.
        """
        self.close()
        self._manager = self._start()

    def close(self) -> None:
        """Nothing is generated any more."""
        self._manager.stop(block=True, timeout=5, hard_stop=True)

    def _start(self) -> Any:  # noqa: ANN401  transformers' manager
        manager = self._model.init_continuous_batching(
            generation_config=generation_config(self._vocabulary, samples=self._parameters.samples),
            continuous_batching_config=batching_config(self._parameters),
        )
        manager.output_router.output_queue = self.events
        manager.start()
        return manager

    def _try_out(self) -> None:
        self.begin("first", [0], max_tokens=1, end_id=-1, sampling=Sampling())
        try:
            output = self.events.get(timeout=_FIRST_ANSWER_SECONDS)
        except queue.Empty:
            output = None
        if output is None or output.error is not None:
            self.close()
            raise RuntimeError(f"the model does not run: {getattr(output, 'error', 'no answer')}")

    def _picking(self, sampling: Sampling) -> dict[str, Any]:
        if not self._parameters.samples:
            return {}
        top_k = min(sampling.top_k or self._vocabulary, self._vocabulary)
        return {"temperature": sampling.temperature, "top_k": top_k, "top_p": sampling.top_p}


def load_model(parameters: Parameters) -> Model:
    """The language model, ready to generate on its device."""
    attention.register()
    device = parameters.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    config = AutoConfig.from_pretrained(parameters.model_dir)
    dtype = getattr(config, "dtype", None) if parameters.dtype == "auto" else parameters.dtype
    dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype or torch.float32
    chosen = attention_name(parameters.attention, config)
    if parameters.random_weights:
        torch.manual_seed(0)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            parameters.model_dir, dtype=dtype, device_map=None if device == "cpu" else device
        )
    model = model.eval()
    model.set_attn_implementation(chosen)
    return model


def attention_name(chosen: str, config: Any) -> str:  # noqa: ANN401  transformers' configuration
    """Transformers' name of the attention; windows and caps on scores need one of its own."""
    text = config.get_text_config()
    plain = not any(
        getattr(text, name, None) for name in ("sliding_window", "layer_types", "attn_logit_softcapping")
    )
    if chosen == "auto":
        chosen = "varlen" if plain else "sdpa"
    if chosen == "varlen":
        return f"paged|{attention.NAME}" if _names_paging() else attention.NAME
    return chosen


def batching_config(parameters: Parameters) -> ContinuousBatchingConfig:
    """The pool as it is told, and a little more, since transformers rounds up twice; nothing is evicted."""
    capacity = parameters.capacity
    return ContinuousBatchingConfig(
        block_size=capacity.tokens_per_block,
        num_blocks=capacity.max_blocks + _SPARE_BLOCKS * capacity.max_batch_size,
        max_batch_tokens=capacity.max_num_tokens,
        max_requests_per_batch=capacity.max_batch_size,
        allow_block_sharing=False,
        safety_margin=0.0,
        per_request_processors=True,
    )


def generation_config(vocabulary: int, *, samples: bool) -> GenerationConfig:
    """Greedy, or what makes transformers build a warper for each parameter; requests always give their own."""
    if not samples:
        return GenerationConfig(do_sample=False, eos_token_id=-1)
    return GenerationConfig(
        do_sample=True, temperature=0.5, top_k=max(1, vocabulary - 1), top_p=0.5, eos_token_id=-1
    )


def _names_paging() -> bool:
    """Whether this transformers marks attention for batching by a prefix: before 5.22 it does."""
    from transformers import AttentionInterface

    return "paged|sdpa" in AttentionInterface()
