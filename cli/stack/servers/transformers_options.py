"""What the transformers engine runs, and what it may hold."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Attention = Literal["auto", "varlen", "sdpa", "eager", "flash_attention_2", "flash_attention_3"]


@dataclass(frozen=True, kw_only=True)
class TransformersOptions:
    """A Hugging Face causal language model behind the tensors of TensorRT-LLM.

    Attributes:
        model_dir: holds its config.json and its weights.
        random_weights: weights are drawn, not read: measurements need no model.
        device: torch's name of it; `auto` is the first GPU, else the CPU.
        dtype: torch's name of the weights' and the cache's type; `auto` is what the model was saved in.
        attention: `varlen` is ours over torch's flash kernel, the others are transformers' own; `auto` is
            `varlen` where the model allows it.
        sampling: whether requests may sample; without it all are greedy.
        tokens_per_response: gathered into one response; each response costs the engine time.
        seed_is_length: a request's seed says after how many tokens it ends, since random weights do not.
        max_batch_size: sequences active at once.
        kv_cache_tokens: tokens in the KV pool.
        tokens_per_block: tokens in a KV block.
        max_input_len: prompt tokens; told to clients, not enforced (as in TensorRT-LLM).
        max_seq_len: prompt and output tokens; a request that asks for more is cut in silence.
        max_num_tokens: tokens in one iteration, so also the size of a prompt chunk.
    """

    model_dir: Path
    random_weights: bool = False
    device: str = "auto"
    dtype: str = "auto"
    attention: Attention = "auto"
    sampling: bool = True
    tokens_per_response: int = 1
    seed_is_length: bool = False
    max_batch_size: int = 4
    kv_cache_tokens: int = 131_072
    tokens_per_block: int = 64
    max_input_len: int = 96_000
    max_seq_len: int = 131_072
    max_num_tokens: int = 4096

    def __post_init__(self) -> None:
        if not (self.model_dir / "config.json").is_file():
            raise ValueError(f"There is no config.json in {self.model_dir}.")

    def transformers_parameters(self) -> dict[str, str]:
        """The parameters of config.pbtxt that only this engine has; their names start so."""
        values: dict[str, object] = {
            "model_dir": self.model_dir.resolve(),
            "random_weights": str(self.random_weights).lower(),
            "device": self.device,
            "dtype": self.dtype,
            "attention": self.attention,
            "sampling": str(self.sampling).lower(),
            "tokens_per_response": self.tokens_per_response,
            "seed_is_length": str(self.seed_is_length).lower(),
        }
        return {f"transformers_{name}": str(value) for name, value in values.items()}
