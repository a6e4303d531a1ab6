"""What a kind of engine can do. Each kind declares it; packing, leases and answers follow from it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of one kind of engine, as declared by its adapter.

    Attributes:
        takes_ids: the prompt goes as the counted token ids; otherwise as text.
        gives_ids: output arrives as token ids; otherwise as text.
        is_streaming: output arrives in deltas while it is generated.
        adds_bos: the server encodes a text as the tokenizer usually does, which may prepend a token.
        ends_itself: the engine ends an answer at the same end tokens and stop strings as we do.
        takes_stop: a stop request ends a request inside the engine, and the stream then ends cleanly.
        notices_cut: the engine ends a request whose stream is cut.
        reports_own_end: the end of a stream is the engine's own: it then holds nothing for the request.
        lacks: the sampling parameters that it does not take; a request that needs one is refused.
        reuses_prefix: a request does not compute again what an earlier one that began alike has computed,
            while the engine still has it.
    """

    takes_ids: bool
    gives_ids: bool
    is_streaming: bool = True
    adds_bos: bool = False
    ends_itself: bool = False
    takes_stop: bool = False
    notices_cut: bool = True
    reports_own_end: bool = True
    lacks: frozenset[str] = frozenset()
    reuses_prefix: bool = True

    @property
    def can_resume(self) -> bool:
        """True if another run can continue an answer where this one ends."""
        return self.takes_ids and self.gives_ids

    @property
    def can_cancel(self) -> bool:
        """True if a stop request or the end of the stream ends the request inside the engine."""
        return self.takes_stop or self.notices_cut
