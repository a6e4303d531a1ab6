"""The parts of transformers' continuous batching that this engine uses, over one language model."""

import queue
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final, TypeAlias

import torch
from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from . import attention
from .parameters import Parameters
from .sampling import Sampling
from .sharing import SharedBlocks
from .steps import StepTrace

Manager: TypeAlias = Any  # transformers' ContinuousBatchingManager
Model: TypeAlias = Any
ModelConfig: TypeAlias = Any

# Transformers may hold this many more blocks for a sequence than its tokens fill.
_SPARE_BLOCKS: Final = 2
_FIRST_ANSWER_SECONDS: Final = 300.0


class Generator:
    """A generator of tokens for sequences that fit together, which the caller must ensure.

    `outputs` yields transformers' outputs: one for each token of each sequence, in order.
    """

    def __init__(self, parameters: Parameters) -> None:
        """Load the model and run one request, so that its memory for the pool is proven.

        Raises:
            RuntimeError: the model does not run.
        """
        self._samples = parameters.samples
        model = load_model(parameters)
        text = model.config.get_text_config()
        self.vocabulary = int(text.vocab_size)
        self.max_positions = int(getattr(text, "max_position_embeddings", 2**31))
        self._manager = make_manager(model, parameters, batching_config(parameters, model.config))
        self._manager.start()
        self.outputs: queue.Queue[Any] = self._manager.output_router.output_queue
        self._try_out()
        processor = self._manager.batch_processor
        self._shared = SharedBlocks(processor.cache) if parameters.reuses_blocks else None
        StepTrace.of_environment(processor)

    def begin(
        self, name: str, ids: Sequence[int], *, max_tokens: int, end_id: int, sampling: Sampling
    ) -> None:
        """Add a sequence from the next iteration on."""
        self._manager.add_request(
            ids,
            request_id=name,
            max_new_tokens=max_tokens,
            streaming=True,
            eos_token_id=[end_id],
            **self._picking(sampling),
        )

    def cancel(self, name: str) -> None:
        """Remove a sequence at the next iteration boundary, without an output."""
        self._manager.cancel_request(name)

    def holds(self, name: str) -> bool:
        """Return True if the sequence may still hold blocks."""
        if not self._manager.cancel_queue.empty():
            return True
        scheduler = self._manager.batch_processor.scheduler
        return name in scheduler.active_requests or name in scheduler.waiting_requests

    def num_cached(self, name: str) -> int:
        """Return how many tokens of the sequence's prompt were in the cache. Ask once, after its first."""
        return self._shared.pop(name) if self._shared else 0

    @property
    def num_used(self) -> int | None:
        """Blocks that sequences refer to, shared ones counted once. None: they share none."""
        return self._shared.num_used if self._shared else None

    @property
    def is_alive(self) -> bool:
        """True while it generates; if False, every running sequence has failed."""
        return bool(self._manager.is_running())

    def close(self) -> None:
        """Stop generating."""
        self._manager.stop(block=True, timeout=5, hard_stop=True)

    def _try_out(self) -> None:
        self.begin("first", [0], max_tokens=1, end_id=-1, sampling=Sampling())
        try:
            output = self.outputs.get(timeout=_FIRST_ANSWER_SECONDS)
        except queue.Empty:
            output = None
        if output is None or output.error is not None:
            self.close()
            raise RuntimeError(f"the model does not run: {getattr(output, 'error', 'no answer')}")

    def _picking(self, sampling: Sampling) -> dict[str, Any]:
        if not self._samples:
            return {}
        top_k = min(sampling.top_k or self.vocabulary, self.vocabulary)
        return {"temperature": sampling.temperature, "top_k": top_k, "top_p": sampling.top_p}


def load_model(parameters: Parameters) -> Model:
    """Load the language model on its device, ready to generate."""
    device = parameters.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    config = AutoConfig.from_pretrained(parameters.model_dir)
    dtype = _dtype(parameters.dtype, config)
    if parameters.random_weights:
        torch.manual_seed(0)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            parameters.model_dir, dtype=dtype, device_map=None if device == "cpu" else device
        )
    if parameters.attention not in {"auto", "varlen"}:
        model.set_attn_implementation(parameters.attention)
    return model.eval()


def make_manager(model: Model, parameters: Parameters, config: ContinuousBatchingConfig) -> Manager:
    """Create the model's batching manager, not yet started."""
    manager = model.init_continuous_batching(
        generation_config=_generation_config(model, samples=parameters.samples),
        continuous_batching_config=config,
    )
    if runs_varlen(parameters.attention, model.config):
        attention.use(model)
    return manager


def batching_config(parameters: Parameters, config: ModelConfig) -> ContinuousBatchingConfig:
    """Configure the pool. It is a little larger, since transformers rounds up twice: nothing is evicted."""
    capacity = parameters.capacity
    names = {each.name for each in fields(ContinuousBatchingConfig)}
    # Transformers cannot record our attention in a CUDA graph.
    graphs = False if runs_varlen(parameters.attention, config) else None
    return ContinuousBatchingConfig(
        **{"page_size" if "page_size" in names else "block_size": capacity.tokens_per_block},
        num_blocks=capacity.max_blocks + _SPARE_BLOCKS * capacity.max_batch_size,
        max_batch_tokens=capacity.max_num_tokens,
        max_requests_per_batch=capacity.max_batch_size,
        allow_block_sharing=parameters.reuses_blocks,
        safety_margin=0.0,
        per_request_processors=True,
        use_cuda_graph=graphs,
        use_async_batching=graphs,
    )


def runs_varlen(chosen: str, config: ModelConfig) -> bool:
    """Return True if our attention runs: on request, or for a model without windows and score caps."""
    text = config.get_text_config()
    layers = set(getattr(text, "layer_types", None) or ["full_attention"])
    window = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    is_plain = layers == {"full_attention"} and not window
    is_plain = is_plain and not getattr(text, "attn_logit_softcapping", None)
    return chosen == "varlen" or (chosen == "auto" and is_plain)


def _generation_config(model: Model, *, samples: bool) -> GenerationConfig:
    """Configure greedy, or make transformers build a warper for each parameter; requests always set them."""
    if not samples:
        return GenerationConfig(do_sample=False, eos_token_id=-1)
    top_k = max(1, model.config.get_text_config().vocab_size - 1)
    return GenerationConfig(do_sample=True, temperature=0.5, top_k=top_k, top_p=0.5, eos_token_id=-1)


def _dtype(name: str, config: ModelConfig) -> torch.dtype:
    """Return the type with this name; `auto` is the type that the model was saved in."""
    found = getattr(config, "dtype", None) if name == "auto" else name
    if isinstance(found, str):
        found = getattr(torch, found)
    return found if isinstance(found, torch.dtype) else torch.float32
