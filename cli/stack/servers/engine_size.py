"""The limits that every engine behind Triton has, named as TensorRT-LLM's are."""

from dataclasses import dataclass

from jobs.engines.capacity import Capacity


@dataclass(frozen=True, kw_only=True)
class EngineSize:
    """How much an engine takes at once.

    Attributes:
        max_batch_size: sequences active at once.
        kv_cache_tokens: tokens in the KV pool.
        tokens_per_block: tokens in a KV block.
        max_input_len: prompt tokens; published to clients, but not enforced (as in TensorRT-LLM).
        max_seq_len: prompt and output tokens; longer requests are truncated silently.
        max_num_tokens: tokens in one iteration, and so the size of a prompt chunk.
        kv_cache_reuse: requests reuse the KV blocks of earlier ones that began with the same tokens.
    """

    max_batch_size: int = 4
    kv_cache_tokens: int = 131_072
    tokens_per_block: int = 64
    max_input_len: int = 96_000
    max_seq_len: int = 131_072
    max_num_tokens: int = 8192
    kv_cache_reuse: bool = True

    @property
    def capacity(self) -> Capacity:
        """Slots and blocks, as admission counts them."""
        return Capacity(
            max_batch_size=self.max_batch_size,
            max_blocks=self.kv_cache_tokens // self.tokens_per_block,
            tokens_per_block=self.tokens_per_block,
            max_input_len=self.max_input_len,
            max_seq_len=self.max_seq_len,
        )
