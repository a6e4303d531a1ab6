"""The model's configuration: what the engine may hold, and which language model it runs how."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .scheduler import Capacity


@dataclass(frozen=True)
class Parameters:
    """The values of config.pbtxt; `cli/stack/model_repository.py` writes them."""

    max_batch_size: int
    values: dict[str, str]

    @classmethod
    def of(cls, model_config: dict[str, Any]) -> "Parameters":
        """The parameters in the model configuration that Triton hands over."""
        given = model_config["parameters"]
        return cls(
            max_batch_size=model_config["max_batch_size"],
            values={name: value["string_value"] for name, value in given.items()},
        )

    @property
    def capacity(self) -> Capacity:
        """Slots, blocks and lengths."""
        tokens_per_block = self._int("tokens_per_block")
        return Capacity(
            max_batch_size=self.max_batch_size,
            max_blocks=self._int("max_tokens_in_paged_kv_cache") // tokens_per_block,
            tokens_per_block=tokens_per_block,
            max_num_tokens=self._int("max_num_tokens"),
            max_seq_len=self._int("max_seq_len"),
        )

    @property
    def model_dir(self) -> Path:
        """A Hugging Face directory; with random weights its config.json is all that is read."""
        return Path(self.values["transformers_model_dir"])

    @property
    def random_weights(self) -> bool:
        """Whether the weights are drawn, not read: for measurements without a model."""
        return self._bool("transformers_random_weights")

    @property
    def device(self) -> str:
        """Torch's name of the device; `auto` is the first GPU, else the CPU."""
        return self.values["transformers_device"]

    @property
    def dtype(self) -> str:
        """Torch's name of the weights' and the cache's type; `auto` is what the model was saved in."""
        return self.values["transformers_dtype"]

    @property
    def attention(self) -> str:
        """`varlen`, or one of transformers' own; `auto` is `varlen` where the model allows it."""
        return self.values["transformers_attention"]

    @property
    def samples(self) -> bool:
        """Whether requests may sample; without it all are greedy, and a step is a little faster."""
        return self._bool("transformers_sampling")

    @property
    def tokens_per_response(self) -> int:
        """Tokens gathered into one response; the first is sent at once."""
        return self._int("transformers_tokens_per_response")

    @property
    def seed_is_length(self) -> bool:
        """Whether a request's seed says after how many tokens it ends, the end token counted.

        For measurements: a model with random weights never ends an answer by itself.
        """
        return self._bool("transformers_seed_is_length")

    @property
    def http_port(self) -> int:
        """Where the server listens, 0 when that is not to be watched."""
        return self._int("transformers_http_port")

    def _int(self, name: str) -> int:
        return int(self.values[name])

    def _bool(self, name: str) -> bool:
        return self.values[name].lower() == "true"
