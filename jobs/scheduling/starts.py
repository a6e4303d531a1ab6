"""Starting jobs on an engine: their claims, and what they leave free."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from jobs import lifecycle
from jobs.ids import uuid7
from jobs.scheduling.choosing import Choices, ChosenJob, note_start, with_started
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.engine_queue import EngineQueue
from jobs.scheduling.preemption import choose_preemptions
from jobs.scheduling.prefixes.engine_prefixes import family_of
from jobs.scheduling.ranking import Ranked
from jobs.starting import StartedJob
from jobs.states import Lane
from jobs.transitions import Lease


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that is ours to run.

    Attributes:
        lease: the fence for every later write.
        blocks: KV blocks reserved for it.
        output_tokens: output that the blocks cover besides the prompt, including that of earlier runs.
        job: its row at the claim.
        is_awaited: others may begin like it, and wait until it is known to have read that. Once the reader
            has ended, they wait for a follower.
        is_first: no engine had the job before.
    """

    lease: Lease
    blocks: int
    output_tokens: int
    job: StartedJob
    is_awaited: bool = False
    is_first: bool = False


@dataclass(slots=True)
class Starts:
    """The jobs that start on an engine within one transaction, which holds the engine's row."""

    queue: EngineQueue
    load: EngineLoad
    limit: int | None
    claims: list[Claim] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """True if no slot is left."""
        return self.load.budget.free_slots < 1

    @property
    def is_done(self) -> bool:
        """True if as many jobs have started as the caller asked for."""
        return self.limit is not None and len(self.claims) >= self.limit

    def start(self, candidates: list[Ranked]) -> list[Ranked]:
        """Start those candidates that may start now and return the others.

        Args:
            candidates: in rank order.
        """
        if self.queue.known is not None:
            self.queue.known.know([each.job for each in candidates])
        while candidates and not self.is_done and (chosen := self._choose(candidates)):
            if self._start(chosen) == len(chosen):
                break  # no other fits now
            self.queue.note_missed()
            candidates = self.queue.still_waiting(candidates)
        return candidates

    def ask_for_room(self, candidates: Sequence[Ranked]) -> bool:
        """Ask batch jobs to leave for the first interactive one.

        Returns:
            True if any was asked.
        """
        policy = self.queue.policy
        if not policy.preempts or candidates[0].candidate.lane is not Lane.INTERACTIVE:
            return False
        leaving = choose_preemptions(
            candidates[0].candidate,
            list(self.load.running.values()),
            self.load.budget,
            max_batch_size=self.load.capacity.max_batch_size,
            policy=policy.packing,
            batch_waits=any(each.candidate.lane is Lane.BATCH for each in candidates),
        )
        return bool(leaving) and lifecycle.request_preemption(self.queue.session, leaving) > 0

    def _choose(self, candidates: list[Ranked]) -> list[ChosenJob]:
        """Take those that fit together out of the candidates, as if each started at once."""
        known, found = self.queue.known, list[ChosenJob]()
        choices = Choices(candidates, self.load, self.queue.policy.packing, known)
        while self.limit is None or len(self.claims) + len(found) < self.limit:
            chosen = choices.choose()
            if chosen is None:
                break
            ranked, choice = chosen
            found.append(self._describe(ranked, choice.overtakes, choices))
            choices.start(ranked, found[-1].lease, found[-1].reuse)
        candidates[:] = choices.left.values()
        return found

    def _describe(self, ranked: Ranked, overtakes: UUID | None, choices: Choices) -> ChosenJob:
        """Note that this candidate is to start, and describe what its claim needs."""
        known = self.queue.known
        family = known.family_of(ranked.job) if known is not None else family_of(ranked.job)
        reads_twice = known is not None and known.reads_twice(ranked.job)
        reuse, postponed = note_start(
            ranked, choices.left.values(), self.load, self.queue.policy.packing, known
        )
        lease = Lease(ranked.job.id, uuid7())
        return ChosenJob(ranked, lease, overtakes, reuse, None if reads_twice else family, postponed)

    def _start(self, chosen: Sequence[ChosenJob]) -> int:
        """Claim these jobs, all but those that another engine was faster with or that were recounted.

        Returns:
            How many are claimed.
        """
        policy, known = self.queue.policy, self.queue.known
        policy.read_prompts(self.queue.session, [each.ranked.job for each in chosen])
        started = lifecycle.claim(
            self.queue.session,
            [each.start() for each in chosen],
            lease_duration=policy.lease,
            engine_name=self.queue.engine.name,
            claimant=policy.claimant,
        )
        jobs = {job.id: job for job in started}
        for each in chosen:
            if job := jobs.get(each.lease.job_id):
                size, guest = each.ranked.size, each.guest()
                self.load = with_started(self.load, each.ranked, each.lease, each.reuse)
                is_awaited = known is not None and guest.reader is not None
                is_first = each.ranked.job.started_at is None
                self.claims.append(
                    Claim(each.lease, size.blocks, size.output_tokens, job, is_awaited, is_first)
                )
                if known is not None:
                    known.replay.start(
                        each.lease.lease_id,
                        guest,
                        reused_tokens=each.reuse.tokens,
                        overtaking=each.overtaking(),
                    )
        return len(started)
