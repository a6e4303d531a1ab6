"""What a model keeps in its cache for one sequence, layer by layer: so much a token, and a constant."""

from dataclasses import dataclass
from typing import Literal

LayerKind = Literal["full", "sliding", "chunked", "latent", "recurrent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that keep the same.

    Attributes:
        kind: full: every token; sliding and chunked: the last `window` tokens; latent: every token,
            compressed (MLA); recurrent: a state of constant size.
        layers: how many.
        token_values: numbers that one layer keeps for one token; 0 for recurrent layers.
        index_bytes: bytes that one layer keeps for one token besides, whatever the numbers' format: the key
            of an indexer, which chooses the tokens to attend to.
        window: tokens that it keeps at most. None: all.
        state_bytes: constant bytes that one layer keeps for one sequence.
    """

    kind: LayerKind
    layers: int
    token_values: int = 0
    index_bytes: int = 0
    window: int | None = None
    state_bytes: int = 0

    def layer_bytes(self, width: int) -> int:
        """Compute the bytes that one layer keeps for one token. Args: width: bytes of one number."""
        return self.token_values * width + self.index_bytes


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The groups of a model's layers."""

    groups: tuple[LayerGroup, ...]

    def token_bytes(self, width: int, *, gpus: int = 1) -> int:
        """Compute the bytes of each further token, in layers that keep all of them.

        Args:
            width: bytes of one number in the cache.
            gpus: that share each layer by its heads. What is latent has none: each GPU keeps it whole.
        """
        return sum(
            each.layers * each.layer_bytes(width) * (gpus if each.kind == "latent" else 1)
            for each in self.groups
            if each.window is None
        )

    def window_token_bytes(self, width: int) -> int:
        """Compute the bytes of a token in layers that keep the last ones only."""
        return width * sum(each.layers * each.token_values for each in self.groups if each.window is not None)

    def sequence_bytes(self, width: int, longest: int) -> int:
        """Compute the constant bytes of a sequence: full windows and recurrent states.

        Args:
            width: bytes of one number in the cache.
            longest: tokens of the longest sequence; larger windows never fill.
        """
        windows = sum(
            each.layers * each.token_values * min(each.window, longest) * width
            for each in self.groups
            if each.window is not None
        )
        return windows + sum(each.layers * each.state_bytes for each in self.groups)

    def attended_pairs(self, tokens: int) -> float:
        """Count the pairs of tokens that attend to each other in a prompt, over all layers."""
        return sum(
            each.layers * tokens * min(tokens / 2, each.window or tokens)
            for each in self.groups
            if each.kind != "recurrent"
        )
