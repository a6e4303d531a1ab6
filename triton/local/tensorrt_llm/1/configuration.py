"""Values of every engine's config.pbtxt: its capacity and typed parameters."""

from dataclasses import dataclass
from typing import Any, Self

from .scheduler import Capacity


@dataclass(frozen=True)
class Configuration:
    """The values of config.pbtxt; `cli/stack/servers/model_repository.py` writes them."""

    max_batch_size: int
    values: dict[str, str]

    @classmethod
    def of(cls, model_config: dict[str, Any]) -> Self:
        """Read the parameters of the model configuration that Triton passes."""
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
    def reuses_blocks(self) -> bool:
        """True if requests reuse the KV blocks of earlier ones."""
        return self._bool("enable_kv_cache_reuse")

    def _int(self, name: str) -> int:
        return int(self.values[name])

    def _float(self, name: str) -> float:
        return float(self.values[name])

    def _bool(self, name: str) -> bool:
        return self.values[name].lower() == "true"
