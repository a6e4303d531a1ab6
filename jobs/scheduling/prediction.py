"""How much output to reserve for a job: as much as the outputs of its peers justify."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, log2

import numpy as np
import numpy.typing as npt

from jobs.engines.capacity import Capacity

# Fewest peers that allow a prediction; with fewer, as many powers of two count as equally likely.
FEW = 8
# Of the newest outputs of a task, this many count: those whose prompts were nearest in length.
NEAREST = 64
# Treats prompts as equal whose lengths differ by less than a fifth.
_STEPS_PER_OCTAVE = 4


@dataclass(frozen=True, slots=True)
class PredictionPolicy:
    """How a prediction weighs reservations; costs are in engine iterations ("steps").

    Attributes:
        cold_tokens: longest output expected while too few peers have ended for a prediction.
        quantiles: of the peers' outputs, that a reservation may cover.
        continue_steps: for which a slot stands idle between two segments: the gap between requests, and at
            times a wait for free blocks.
        reread_steps: cost of reading one prompt token again: 1/119 of a decode step's time on an A6000, 1/151
            on an H200, by their rooflines.
        reuses_prefix: the engine still has the tokens of a job that continues at once.
    """

    cold_tokens: int = 2048
    quantiles: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
    continue_steps: float = 256
    reread_steps: float = 1 / 128
    reuses_prefix: bool = True


@dataclass(slots=True, eq=False)
class Peers:
    """What the newest jobs of one task generated, looked up by the length of a prompt.

    One task of a tenant can hold tickets and whole books: the length of an answer depends on the question,
    and the length of the prompt shows a part of that.
    """

    _pairs: npt.NDArray[np.int64]
    _found: dict[int, Sequence[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> "Peers":
        """Build them from the prompt and output tokens of each job that ended, newest first."""
        return cls(np.array(list(pairs), dtype=np.int64).reshape(-1, 2))

    def near(self, prompt_tokens: int) -> Sequence[int]:
        """Return outputs of the NEAREST prompts by ratio of length, the newest of one length; ascending."""
        step = round(_STEPS_PER_OCTAVE * log2(prompt_tokens + 1))
        if step not in self._found:
            middle = 2 ** (step / _STEPS_PER_OCTAVE)
            distances = np.abs(np.log2((self._pairs[:, 0] + 1) / middle))
            nearest = self._pairs[np.argsort(distances, kind="stable")[:NEAREST], 1]
            self._found[step] = np.sort(nearest).tolist()
        return self._found[step]


def likely(peers: Sequence[int], *, produced: int) -> int | None:
    """Return how many more tokens half of the peers needed that got as far; None: there are too few.

    Args:
        peers: outputs of ended jobs, in tokens, ascending.
        produced: tokens that the job generated so far.
    """
    first = bisect_right(peers, produced)
    num_peers = len(peers) - first
    return None if num_peers < FEW else peers[first + num_peers // 2] - produced


def predict(
    capacity: Capacity, peers: Sequence[int], *, prompt_tokens: int, produced: int, policy: PredictionPolicy
) -> int:
    """Find the output whose reservation costs least, in tokens, `produced` included.

    A larger reservation keeps others out for as long as the job runs, but only by what it takes beyond a
    slot's share of the pool. A smaller one is more likely to need another segment. Between two segments its
    slot stands idle, which is much of an engine of four slots and little of one of a thousand; and some
    engines read the prompt again. So short jobs on few slots reserve nearly all that peers ever needed, as do
    long prompts on an engine without prefix cache; long answers, and jobs on many slots, much less. What its
    share holds costs nothing, so a job reserves that much at least: on many slots, the first to end were the
    shortest.

    Args:
        capacity: of the engine.
        peers: outputs of ended jobs of the same tenant and template, in tokens, ascending.
        prompt_tokens: of the job.
        produced: tokens that it generated so far.
        policy: the weights.
    """
    longer = peers[bisect_right(peers, produced) :]  # only peers that got as far count
    cold = max(policy.cold_tokens, produced)
    if len(longer) < FEW:
        longer = [produced + max(1, cold >> (FEW - part)) for part in range(1, FEW + 1)]
    num_peers, room = len(longer), capacity.max_tokens_in_share - prompt_tokens
    # In steps of the whole engine: of a token reserved, and of another segment.
    price = (longer[num_peers // 2] - produced) / max(1, capacity.max_tokens_in_pool)
    again = policy.continue_steps / capacity.max_batch_size
    if not policy.reuses_prefix:
        again += policy.reread_steps * (prompt_tokens + produced)

    def covering(quantile: float) -> int:
        place = ceil((num_peers + 1) * quantile) - 1  # as for one peer more, by exchangeability
        return longer[place] if place < num_peers else max(longer[-1], policy.cold_tokens)

    def cost(option: tuple[float, int]) -> float:
        quantile, output = option
        return price * max(0, output - room) + (1 - quantile) * again

    cheapest = min(((quantile, covering(quantile)) for quantile in policy.quantiles), key=cost)[1]
    return max(cheapest, min(room, policy.cold_tokens))
