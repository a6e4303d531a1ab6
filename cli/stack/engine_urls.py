"""The options for engines that run already; light to import, unlike `found_engines`."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineUrls:
    """The command line's options for engines that run already.

    Attributes:
        urls: one engine each.
        model: the name at the engine; None: its only one.
        slots: requests that it runs at once; None: as it reports.
        kv_tokens: tokens that its KV cache holds; None: as it reports.
        tokenizer: directory or name of the model's tokenizer; None: the model's own, if it is here.
    """

    urls: tuple[str, ...]
    model: str | None = None
    slots: int | None = None
    kv_tokens: int | None = None
    tokenizer: str | None = None
