"""The transformers engine's own configuration: its language model and how to run it."""

from pathlib import Path

from .configuration import Configuration


class Parameters(Configuration):
    """The values of config.pbtxt that only this engine has."""

    @property
    def model_dir(self) -> Path:
        """A Hugging Face directory; with random weights only its config.json is read."""
        return Path(self.values["transformers_model_dir"])

    @property
    def random_weights(self) -> bool:
        """True if the weights are random, for measurements without a model."""
        return self._bool("transformers_random_weights")

    @property
    def device(self) -> str:
        """Torch's name of the device; `auto` is the first GPU, or the CPU if there is none."""
        return self.values["transformers_device"]

    @property
    def dtype(self) -> str:
        """Torch's name of the type of weights and cache; `auto` is the type that the model was saved in."""
        return self.values["transformers_dtype"]

    @property
    def attention(self) -> str:
        """`varlen` or one of transformers' own; `auto` is `varlen` if the model allows it."""
        return self.values["transformers_attention"]

    @property
    def samples(self) -> bool:
        """True if requests may sample; otherwise all are greedy, and a step is a little faster."""
        return self._bool("transformers_sampling")

    @property
    def tokens_per_response(self) -> int:
        """Tokens gathered into one response; the first is sent at once."""
        return self._int("transformers_tokens_per_response")

    @property
    def seed_is_length(self) -> bool:
        """True if a request's seed is its number of tokens, including the end token.

        For measurements: a model with random weights never ends an answer by itself.
        """
        return self._bool("transformers_seed_is_length")

    @property
    def http_port(self) -> int:
        """The server's HTTP port; 0 if it must not be watched."""
        return self._int("transformers_http_port")
