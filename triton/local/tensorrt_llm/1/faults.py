"""The seeded faults of the oracle speaker: silences, gaps between tokens, and errors."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .extractive import ExtractiveSpeaker
from .oracle import digest, expected_text
from .speech import Ask, Fault, Script, TokenIds


@dataclass(frozen=True)
class FaultRates:
    """The rates of faults, as shares of requests unless noted.

    Attributes:
        seed: seed of all draws.
        error_rate: requests that fail at a random token.
        crash_rate: requests that fail there and make all active ones fail too.
        silence_rate: requests that fall silent once, for `silence_seconds` of wall time.
        gap_rate: share of tokens before which up to `gap_seconds` pass.
    """

    seed: int = 0
    error_rate: float = 0.0
    crash_rate: float = 0.0
    silence_rate: float = 0.0
    silence_seconds: float = 5.0
    gap_rate: float = 0.0
    gap_seconds: float = 0.2


class OracleSpeaker:
    """A speaker of `expected_text`; the same prompt meets different faults each time it arrives."""

    def __init__(self, tokenizer_dir: Path, rates: FaultRates) -> None:
        self._voice = ExtractiveSpeaker(tokenizer_dir)
        self._rates = rates
        self._arrivals: Counter[str] = Counter()
        self.markup = self._voice.markup

    def script(self, asked: TokenIds, ask: Ask) -> Script:
        """Write the expected text, with faults drawn for this arrival of the prompt."""
        prompt = asked.tolist()
        ids = self._voice.encode(expected_text(prompt))
        key = digest(prompt)
        self._arrivals[key] += 1
        random = Random(f"{self._rates.seed}/{key}/{self._arrivals[key]}")  # noqa: S311 reproducible on purpose
        indices = range(len(ask.ids) - len(asked), len(ids))
        return Script(
            ids=ids, length=len(ids), pauses=self._pauses(random, indices), fault=self._fault(random, indices)
        )

    def _pauses(self, random: Random, indices: range) -> dict[int, float]:
        rates = self._rates
        pauses = {
            index: random.uniform(0, rates.gap_seconds)
            for index in indices
            if random.random() < rates.gap_rate
        }
        if indices and random.random() < rates.silence_rate:
            pauses[random.choice(indices)] = rates.silence_seconds
        return pauses

    def _fault(self, random: Random, indices: range) -> Fault | None:
        draw = random.random()
        if not indices or draw >= self._rates.error_rate + self._rates.crash_rate:
            return None
        return Fault(index=random.choice(indices), spreads=draw < self._rates.crash_rate)
