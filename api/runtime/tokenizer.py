"""The served model's tokenizer, loaded in the background while the first requests run."""

import asyncio
from contextlib import suppress

from jobs.errors import LongbatchError
from jobs.prompts.counter import PromptCounter
from jobs.prompts.estimates import HOW_COUNTED, TokenCounts
from jobs.prompts.messages import Message, canonical
from jobs.prompts.tokenizer import Tokenizer, load_configured
from jobs.prompts.tokenizer_files import ESTIMATE
from jobs.settings import TokenizerSettings


class LoadedTokenizer:
    """The tokenizer once loaded; until then, or without one, a worker counts prompts.

    Attributes:
        current: None until it is loaded.
        detail: state of loading, in words.
    """

    def __init__(self, settings: TokenizerSettings) -> None:
        self._settings = settings
        self.current: Tokenizer | None = None
        self.detail = "loading"

    @property
    def counts(self) -> TokenCounts:
        """How tokens are counted. Configured estimates count as such before they are loaded."""
        is_estimate = self.current.is_estimate if self.current else self._settings.path == ESTIMATE
        return "estimated" if is_estimate else "exact"

    async def load(self) -> None:
        """Load the tokenizer; on failure `detail` has the reason.

        Takes half a second, and somewhat longer on a first start.
        """
        try:
            self.current = await asyncio.to_thread(_load, self._settings)
        except (LongbatchError, OSError, ValueError) as error:
            self.detail = f"cannot be loaded: {error}"
        else:
            self.detail = f"loaded, fingerprint {self.current.fingerprint}"
            if self.current.is_estimate:
                self.detail = HOW_COUNTED


def preload(settings: TokenizerSettings) -> None:
    """Load the tokenizer, which `LoadedTokenizer` and forked processes then have at once.

    If it cannot be loaded, `LoadedTokenizer` reports that.
    """
    with suppress(LongbatchError, OSError, ValueError):
        load_configured(settings)


def _load(settings: TokenizerSettings) -> Tokenizer:
    """Load the tokenizer, and count a prompt: the first takes several times as long as others."""
    loaded = load_configured(settings)
    count_first(loaded)
    return loaded


def count_first(tokenizer: Tokenizer) -> None:
    """Count a prompt in this process."""
    with suppress(LongbatchError):
        PromptCounter(tokenizer).count_prompt(canonical([Message("user", "a prompt")]))
