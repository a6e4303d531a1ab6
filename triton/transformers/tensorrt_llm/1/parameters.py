"""The transformers engine's own configuration: which language model it runs how."""

from pathlib import Path

from .configuration import Configuration


class Parameters(Configuration):
    """The values of config.pbtxt that only this engine has."""

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
