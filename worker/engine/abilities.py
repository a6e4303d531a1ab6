"""What a kind of engine can do. Each kind declares it; packing, leases and answers follow from it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from jobs.diagnostics import Finding
from jobs.prompts.abilities import ABILITIES, LORA, generates


@dataclass(frozen=True, slots=True, kw_only=True)
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
        keeps_stream: one stream serves one request after another, as each marks its last response.
        lacks: of `ABILITIES`, what it does not take, or not in every release that we know; a request that
            needs one is refused.
        reuses_prefix: a request does not compute again what an earlier one that began alike has computed,
            while the engine still has it.
        shares_prefix: requests that run together share the cache of what they begin with, too.
        takes_cache_salt: a request finds only what others with its salt left in the cache; each tenant has
            its own.
        credits_reuse: blocks that several requests share count once in the pool, in every release we know.
        keeps_state_in_slot: what a sequence takes whatever its length (full windows, recurrent states) is
            part of its slot; otherwise it may take blocks, or a pool of its own.
        window: tokens of the model's attention window, where the server tells of one; 0: it does not.
        adapters: those that it was started with, by their names and in its order; it takes no others. None:
            if it takes any, their weights are sent to it.
    """

    takes_ids: bool
    gives_ids: bool
    is_streaming: bool = True
    adds_bos: bool = False
    ends_itself: bool = False
    takes_stop: bool = False
    notices_cut: bool = True
    reports_own_end: bool = True
    keeps_stream: bool = False
    lacks: frozenset[str]
    reuses_prefix: bool = True
    shares_prefix: bool = False
    takes_cache_salt: bool = False
    credits_reuse: bool
    keeps_state_in_slot: bool
    window: int = 0
    adapters: tuple[str, ...] | None = None

    @property
    def can_resume(self) -> bool:
        """True if another run can continue an answer where this one ends."""
        return self.takes_ids and self.gives_ids

    @property
    def can_cancel(self) -> bool:
        """True if a stop request or the end of the stream ends the request inside the engine."""
        return self.takes_stop or self.notices_cut

    @property
    def is_generating(self) -> bool:
        """True if it generates text."""
        return generates(self.takes)

    @property
    def takes(self) -> frozenset[str]:
        """What a job may ask of it besides a prompt."""
        return ABILITIES - self.lacks

    @property
    def facts(self) -> Mapping[str, object]:
        """All of them by name, for JSON."""
        derived = {"can_resume": self.can_resume, "can_cancel": self.can_cancel}
        listed = {"lacks": sorted(self.lacks), "takes": sorted(self.takes)}
        return asdict(self) | derived | listed


def abilities_finding(
    abilities: Abilities, *, configured: int | None, reported: int | None = None, hint: str = ""
) -> Finding:
    """Report what requests may ask for, what happens to prefixes, and what a sequence takes besides its text.

    Args:
        abilities: the engine's.
        configured: blocks that every sequence takes besides those of its text, by the setting; None: not set.
        reported: the same by the engine; None: it does not tell.
        hint: how an operator finds this number where neither tells it; empty: it is not needed.
    """
    parts = [f"jobs may have {_listed(abilities.takes)}", _adapters(abilities), _reuse(abilities)]
    state, advice = _state(abilities, configured, reported, hint=hint)
    return Finding(
        "abilities",
        "warning" if advice else "ok",
        "; ".join([*parts, state]),
        advice,
        facts=abilities.facts,
    )


def _adapters(abilities: Abilities) -> str:
    if LORA in abilities.lacks:
        return "no adapters"
    if abilities.adapters is None:
        return "adapters are sent to it"
    return f"it was started with the adapters {', '.join(abilities.adapters)}"


def _reuse(abilities: Abilities) -> str:
    if not abilities.reuses_prefix:
        return "prefixes are computed again each time"
    shared = "counts shared blocks once" if abilities.credits_reuse else "may count shared blocks for each"
    reserved = "once while jobs run that share them" if abilities.shares_prefix else "for each request"
    within = " within each tenant" if abilities.takes_cache_salt else ""
    return f"prefixes are reused{within}; the engine {shared}, Longbatch reserves them {reserved}"


def _state(
    abilities: Abilities, configured: int | None, reported: int | None, *, hint: str
) -> tuple[str, str]:
    """Return what a sequence takes besides its text, and what an operator should do; empty: nothing."""
    setting, each = "LONGBATCH_ENGINE__BLOCKS_PER_SEQUENCE", "windows and recurrent states"
    if abilities.keeps_state_in_slot:
        return f"{each} are part of the slot", ""
    if configured is not None:
        told = f"{each}: {configured} blocks a sequence, as set"
        if reported is None or configured >= reported:
            return told, ""
        told += f", and {reported - configured} once for all prompts that are being read"
        return told, "" if configured else f"{setting}: leave it out, and {reported} a sequence are reserved"
    if reported is not None:
        return f"{each}: {reported} blocks a sequence, as the engine reports", ""
    if abilities.window:
        told = f"the model has a window of {abilities.window} tokens, of which nothing is reserved"
        return told, f"{setting}; {hint}".removesuffix("; ")
    told = "whether the model has windows or recurrent states is not told, and nothing is reserved"
    return told, f"{setting}; {hint}" if hint else ""


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
