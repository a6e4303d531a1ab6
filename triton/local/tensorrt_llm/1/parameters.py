"""The stand-in's own configuration: its speed and its answers."""

from pathlib import Path

from .configuration import Configuration
from .scheduler import Roofline
from .speech import Speaker


class Parameters(Configuration):
    """The values of config.pbtxt that only the stand-in has."""

    @property
    def roofline(self) -> Roofline:
        """Cost of an iteration on the modelled GPU, in seconds."""
        return Roofline(
            iteration=self._float("local_iteration_seconds"),
            kv_token=self._float("local_kv_token_seconds"),
            prefill_token=self._float("local_prefill_token_seconds"),
            attention_pair=self._float("local_attention_pair_seconds"),
        )

    @property
    def time_scale(self) -> float:
        """How many times faster than the modelled GPU the engine runs."""
        return self._float("local_time_scale")

    @property
    def http_port(self) -> int:
        """The server's HTTP port; 0 if it must not be watched."""
        return self._int("local_http_port")

    @property
    def tokens_per_response(self) -> int:
        """Tokens gathered into one response."""
        return self._int("local_tokens_per_response")

    @property
    def credits_reuse(self) -> bool:
        """True if a request starts without room for the blocks that it shares with running ones."""
        return self._bool("local_credits_reuse")

    @property
    def always_log_probs(self) -> bool:
        """True if every response has log probabilities, which an ensemble needs. The real engine's do."""
        return self._bool("local_always_log_probs")

    def speaker(self) -> Speaker:
        """Create the speaker, which decides the answers. Loading its tokenizer takes about half a second."""
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
