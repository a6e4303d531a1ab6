"""The adapters (LoRA) that the engine was sent: weights by their task, as in TensorRT-LLM's cache."""

from collections import OrderedDict
from dataclasses import dataclass, field, replace

import numpy as np

from . import wire
from .speech import Ask, Markup, Script, Speaker, TokenIds
from .wire import BadRequestError, PbRequest

# The real cache holds as many as fit its memory; few here, so that some are evicted.
_MOST = 2


class AdapterMissError(BadRequestError):
    """The engine does not have the adapter; the request must be sent again with its weights."""


@dataclass
class AdapterCache:
    """What was sent of each task, those that were used last at the end."""

    _kept: "OrderedDict[int, int]" = field(default_factory=OrderedDict)

    def take(self, request: PbRequest) -> int | None:
        """Return what tells the request's adapter from others, and keep the weights that it brings.

        Shapes:
            lora_task_id: UINT64 `[1, 1]`; lora_weights: FP16 `[1, rows, values]`; lora_config: INT32
            `[1, rows, 3]`.

        Returns:
            None: it names no adapter.

        Raises:
            AdapterMissError: its weights are neither kept nor sent.
            BadRequestError: they are not of the form.
        """
        named = wire.read_input(request, "lora_task_id")
        if named is None:
            return None
        task = int(named.ravel()[0])
        weights = wire.read_input(request, "lora_weights")
        if weights is not None:
            self._kept[task] = _signature(weights, wire.read_input(request, "lora_config"))
        elif task not in self._kept:
            raise AdapterMissError(
                f"LoRA task {task} not found in cache. Please send LoRA weights with request"
            )
        self._kept.move_to_end(task)
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return self._kept[task]


@dataclass(frozen=True)
class AdaptedSpeaker:
    """A speaker whose answers begin elsewhere, at a place that follows from the adapter's weights."""

    inner: Speaker
    signature: int

    @property
    def markup(self) -> Markup:
        """The inner speaker's."""
        return self.inner.markup

    def script(self, asked: TokenIds, ask: Ask) -> Script:
        """Return the inner answer, turned by some tokens."""
        script = self.inner.script(asked, ask)
        at = 1 + self.signature % max(1, len(script.ids) - 1)
        return replace(script, ids=script.ids[at:] + script.ids[:at])


def _signature(weights: wire.Array, config: wire.Array) -> int:
    if config is None or config.shape[-1] != 3 or config.shape[:-1] != weights.shape[:-1]:
        raise BadRequestError("lora_config must have a row of 3 for each row of lora_weights")
    return 1 + int(np.abs(weights.astype(np.float64)).sum()) + int(config.sum())
