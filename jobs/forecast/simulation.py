"""A simulation of one engine: the jobs on it and when each ends, by its speed; pure arithmetic."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Self
from uuid import UUID

from jobs.engines.capacity import ITERATION_TOKENS, Budget
from jobs.forecast.engine_speed import Speed
from jobs.scheduling.packing import Candidate, Reserved

# Fraction of an iteration that rounding may leave of a finished job.
_ALMOST_NOTHING = 1e-6


@dataclass(frozen=True, slots=True)
class RemainingTokens:
    """What a job is expected to take from its start, or from now on if it runs.

    Attributes:
        prompt_tokens: left to read; 0 once it has read them.
        new_tokens: left to generate.
    """

    prompt_tokens: float
    new_tokens: float


@dataclass(frozen=True, slots=True)
class EngineState:
    """An engine as it is now.

    Attributes:
        candidates: queued jobs that it can hold, in rank order.
        reserved: every reservation on it.
        budget: what these leave free.
        max_batch_size: its slots.
        speed: as measured.
    """

    candidates: Sequence[Candidate]
    reserved: Sequence[Reserved]
    budget: Budget
    max_batch_size: int
    speed: Speed

    def cost_s(self, length: RemainingTokens) -> float:
        """Compute the seconds of the whole engine that a job takes.

        Reading stops all other jobs; the jobs of a batch share each iteration.
        """
        return self.speed.reading_s(length.prompt_tokens) + (
            length.new_tokens * self.speed.step_s / self.max_batch_size
        )


@dataclass(slots=True)
class _SimulatedJob:
    """A reservation on its way to its end; both counts in iterations.

    Attributes:
        left: until its expected end.
        reserved: until the end of its reservation, which the packing uses.
    """

    job: Reserved
    left: float
    reserved: float


@dataclass(slots=True)
class SimulatedEngine:
    """An engine at some time from now on.

    Attributes:
        queue: candidates in rank order.
        budget: what is free.
        is_closed: a job runs alone; no other starts until the engine is empty.
        jobs: its reservations.
        unread: prompts being read, in order of arrival: iterations, and the extra seconds of each.
    """

    state: EngineState
    queue: dict[UUID, Candidate]
    budget: Budget
    is_closed: bool
    jobs: list[_SimulatedJob] = field(default_factory=list)
    unread: deque[tuple[float, float]] = field(default_factory=deque)

    @classmethod
    def from_state(cls, state: EngineState, lengths: Mapping[UUID, RemainingTokens]) -> Self:
        """Start the simulation with the engine as it is now."""
        queue = {each.job_id: each for each in state.candidates}
        full = len(state.reserved) >= state.max_batch_size
        made = cls(state, queue, state.budget, is_closed=state.budget.free_slots == 0 and not full)
        for each in state.reserved:
            made.add(each, lengths.get(each.job_id, RemainingTokens(0, 0)))
        return made

    def add(self, job: Reserved, length: RemainingTokens) -> None:
        """Add a reservation; it ends after all prompts before it, its own, and its tokens."""
        if length.prompt_tokens:
            chunks = ceil(length.prompt_tokens / ITERATION_TOKENS)
            self.unread.append((chunks, self.state.speed.reading_s(length.prompt_tokens) / chunks))
        before = sum(chunks for chunks, _ in self.unread) if length.prompt_tokens else 0
        self.jobs.append(_SimulatedJob(job, before + length.new_tokens, reserved=job.steps_left))

    def start(self, candidate: Candidate, length: RemainingTokens) -> None:
        """Start the candidate on the engine."""
        self.add(Reserved(candidate.job_id, candidate.blocks, candidate.steps, candidate.lane), length)
        self.is_closed = candidate.alone
        self._count(self.budget.free_blocks - candidate.blocks)

    def reservations(self) -> list[Reserved]:
        """Describe the reservations for the packing."""
        return [replace(each.job, steps_left=ceil(each.reserved)) for each in self.jobs]

    def seconds_to_next_end(self) -> float:
        """Compute the seconds until the next job ends; infinite if none runs."""
        steps = to_read = min((each.left for each in self.jobs), default=inf)
        seconds = steps * self.state.speed.step_s
        for chunks, longer_s in self.unread:
            read = min(chunks, to_read)
            seconds, to_read = seconds + read * longer_s, to_read - read
        return seconds

    def advance(self, seconds: float) -> list[UUID]:
        """Advance the simulation by `seconds`; remove the jobs that finished, and return them."""
        steps = self._pass(seconds)
        for each in self.jobs:
            each.left -= steps
            each.reserved = max(0.0, each.reserved - steps)
        ended = [each.job for each in self.jobs if each.left < _ALMOST_NOTHING]
        if ended:
            self.jobs = [each for each in self.jobs if each.left >= _ALMOST_NOTHING]
            self._count(self.budget.free_blocks + sum(each.blocks for each in ended))
        return [each.job_id for each in ended]

    def _pass(self, seconds: float) -> float:
        """Read prompts for this time and return the iterations that fit into it."""
        steps, step_s = 0.0, self.state.speed.step_s
        while self.unread:
            chunks, longer_s = self.unread.popleft()
            done = min(chunks, seconds / (step_s + longer_s))
            steps, seconds = steps + done, seconds - done * (step_s + longer_s)
            if done < chunks:
                self.unread.appendleft((chunks - done, longer_s))
                return steps
        return steps + seconds / step_s

    def _count(self, free_blocks: int) -> None:
        self.is_closed = self.is_closed and bool(self.jobs)
        free_slots = 0 if self.is_closed else self.state.max_batch_size - len(self.jobs)
        self.budget = Budget(free_slots, free_blocks, idle=not self.jobs)
