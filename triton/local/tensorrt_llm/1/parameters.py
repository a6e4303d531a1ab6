"""The model's configuration: what the engine is built for, how fast it is, and what it says."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .scheduler import Capacity, Roofline
from .speech import Speaker


@dataclass(frozen=True)
class Parameters:
    """The values of config.pbtxt; `cli/stack/triton_server.py` writes them."""

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
    def roofline(self) -> Roofline:
        """Seconds of the modelled GPU."""
        return Roofline(
            iteration=self._float("local_iteration_seconds"),
            kv_token=self._float("local_kv_token_seconds"),
            prefill_token=self._float("local_prefill_token_seconds"),
            attention_pair=self._float("local_attention_pair_seconds"),
        )

    @property
    def time_scale(self) -> float:
        """How much faster than the modelled GPU time runs."""
        return self._float("local_time_scale")

    @property
    def http_port(self) -> int:
        """Where the server listens, 0 when that is not to be watched."""
        return self._int("local_http_port")

    @property
    def tokens_per_response(self) -> int:
        """Tokens gathered into one response."""
        return self._int("local_tokens_per_response")

    @property
    def always_log_probs(self) -> bool:
        """Whether every response holds them, as an ensemble needs it; the real engine's always do."""
        return self.values["local_always_log_probs"] == "True"

    def speaker(self) -> Speaker:
        """What decides the answers; loading its tokenizer takes about half a second."""
        directory = self.values["local_tokenizer_dir"]
        if self.values["local_mode"] == "synthetic":
            from .synthetic import OutputLength, SyntheticSpeaker

            length = OutputLength(self._float("local_synthetic_median"), self._float("local_synthetic_sigma"))
            return SyntheticSpeaker(Path(directory) if directory else None, length)
        if self.values["local_mode"] == "oracle":
            from .faults import FaultRates, OracleSpeaker

            names = FaultRates.__dataclass_fields__.keys() - {"seed"}
            rates = {name: self._float(f"local_oracle_{name}") for name in names}
            return OracleSpeaker(Path(directory), FaultRates(seed=self._int("local_oracle_seed"), **rates))
        from .extractive import ExtractiveSpeaker

        return ExtractiveSpeaker(Path(directory))

    def _int(self, name: str) -> int:
        return int(self.values[name])

    def _float(self, name: str) -> float:
        return float(self.values[name])
