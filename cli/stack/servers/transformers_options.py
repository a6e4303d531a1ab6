"""The options of the transformers engine: its model and its limits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cli.stack.servers.engine_size import EngineSize

Attention = Literal["auto", "varlen", "sdpa", "eager", "flash_attention_2", "flash_attention_3"]


@dataclass(frozen=True, kw_only=True)
class TransformersOptions(EngineSize):
    """A Hugging Face causal language model that is served with TensorRT-LLM's tensors.

    Attributes:
        model_dir: holds the model's config.json and weights.
        random_weights: draw the weights instead of reading them, for measurements without a model.
        device: torch's name of the device; `auto` is the first GPU, or the CPU without one.
        dtype: torch's name of the type of weights and cache; `auto` is the type in the saved model.
        attention: `varlen` is ours on torch's flash kernel, the others are transformers' own; `auto` is
            `varlen` if the model allows it.
        sampling: True if requests may sample; otherwise all are greedy.
        tokens_per_response: tokens collected into one response; each response costs the engine time.
        seed_is_length: a request's seed sets its number of output tokens, because random weights do not end.
    """

    model_dir: Path
    random_weights: bool = False
    device: str = "auto"
    dtype: str = "auto"
    attention: Attention = "auto"
    sampling: bool = True
    tokens_per_response: int = 1
    seed_is_length: bool = False
    max_num_tokens: int = 4096

    def __post_init__(self) -> None:
        if not (self.model_dir / "config.json").is_file():
            raise ValueError(f"No config.json in {self.model_dir}.")

    def transformers_parameters(self) -> dict[str, str]:
        """Build the config.pbtxt parameters of this engine alone, `transformers_…`."""
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
