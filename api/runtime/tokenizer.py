"""The served model's tokenizer, loaded beside the first requests."""

import asyncio

from jobs.errors import LongbatchError
from jobs.prompts.tokenizer import Tokenizer, load_configured
from jobs.settings import TokenizerSettings


class LoadedTokenizer:
    """The tokenizer once it is there; until then, or without one, prompts are counted by a worker.

    Attributes:
        current: None until it is loaded.
        detail: how that went, in words.
    """

    def __init__(self, settings: TokenizerSettings) -> None:
        self._settings = settings
        self.current: Tokenizer | None = None
        self.detail = "loading"

    async def load(self) -> None:
        """It is loaded, or `detail` says why not; takes half a second, and some more on a first start."""
        try:
            self.current = await asyncio.to_thread(load_configured, self._settings)
        except (LongbatchError, OSError, ValueError) as error:
            self.detail = f"cannot be loaded: {error}"
        else:
            self.detail = f"loaded, fingerprint {self.current.fingerprint}"
