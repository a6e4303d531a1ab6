"""Starting jobs on an engine: their requests, their claims, and what they leave free."""

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from uuid import UUID

from jobs import lifecycle
from jobs.ids import uuid7
from jobs.scheduling.choosing import Choices, ChosenJob, note_start, with_started
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.engine_queue import EngineQueue
from jobs.scheduling.head_starts import Begun, HeadStart
from jobs.scheduling.preemption import choose_preemptions
from jobs.scheduling.prefixes.engine_prefixes import family_of
from jobs.scheduling.prefixes.followers import Reuse
from jobs.scheduling.ranking import Ranked
from jobs.starting import StartedJob, left_out
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
    """The jobs that start on an engine within one transaction, which holds the engine's row.

    Attributes:
        begun: what was in the engine before: no other claim of this transaction is for its jobs.
        sent: jobs whose requests this transaction has sent; the same holds for them.
    """

    queue: EngineQueue
    load: EngineLoad
    limit: int | None
    begun: Begun
    sent: list[HeadStart] = field(default_factory=list)
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
        inside = self._inside()
        candidates = [each for each in candidates if each.job.id not in inside]
        if self.queue.known is not None:
            self.queue.known.know([each.job for each in candidates])
        while candidates and not self.is_done and (chosen := self._choose(candidates)):
            self._send(chosen)
            started = {each.id for each in self._start(chosen)}
            if len(started) == len(chosen):
                break  # no other fits now
            self.queue.note_missed()
            sent = self._inside()
            self._hold(each for each in chosen if each.lease.job_id in sent - started)
            candidates = self.queue.still_waiting(candidates)
        return candidates

    def _inside(self) -> AbstractSet[UUID]:
        """Return the jobs whose requests are in the engine, claimed or not."""
        return self.begun.job_ids | {each.lease.job_id for each in self.sent}

    def ask_for_room(self, candidates: Sequence[Ranked]) -> bool:
        """Ask batch jobs to leave for the first interactive one.

        Returns:
            True if any was asked.
        """
        policy = self.queue.policy
        if not policy.preempts or candidates[0].candidate.lane is not Lane.INTERACTIVE:
            return False
        inside = {each.lease.lease_id for each in (*self.sent, *self.begun.head_starts)}
        unclaimed = inside - {each.lease.lease_id for each in self.claims}
        leaving = choose_preemptions(
            candidates[0].candidate,
            [each for lease_id, each in self.load.running.items() if lease_id not in unclaimed],
            self.load.budget,
            max_batch_size=self.load.capacity.max_batch_size,
            policy=policy.packing,
            batch_waits=any(each.candidate.lane is Lane.BATCH for each in candidates),
        )
        return bool(leaving) and lifecycle.request_preemption(self.queue.session, leaving) > 0

    def start_begun(self) -> None:
        """Start the jobs of head starts, as a tick at the moment of each would have; hold the room of others.

        Of those that cannot start the requests are in the engine, until they are stopped. Those that are
        answered take no room: their ends are stored in this transaction.
        """
        begun = self.begun
        known, chosen, answered = self.queue.known, list[ChosenJob](), begun.answered
        if known is not None:
            known.know([each.ranked.job for each in begun.claimed_now])
        load = self.load
        for each in begun.claimed_now:
            if each.lease in answered:
                chosen.append(self._describe(each.ranked, each.lease, each.overtakes, (), load))
                continue
            if load.budget.free_slots < 1 or load.budget.free_blocks < each.ranked.candidate.room:
                load = self.load = with_started(self.load, each.ranked, each.lease, Reuse())
                continue
            chosen.append(self._describe(each.ranked, each.lease, each.overtakes, (), load))
            load = with_started(load, each.ranked, each.lease, chosen[-1].reuse)
        started = {job.id for job in self._start(chosen, answered=answered)} if chosen else set()
        if len(started) < len(chosen):
            self.queue.note_missed()
        held = {each.lease.job_id for each in chosen if each.lease not in answered} - started
        self._hold(each for each in chosen if each.lease.job_id in held)

    def _choose(self, candidates: list[Ranked]) -> list[ChosenJob]:
        """Take those that fit together out of the candidates, as if each started at once."""
        known, found = self.queue.known, list[ChosenJob]()
        choices = Choices(candidates, self.load, self.queue.policy.packing, known)
        while self.limit is None or len(self.claims) + len(found) < self.limit:
            chosen = choices.choose()
            if chosen is None:
                break
            ranked, choice = chosen
            lease = Lease(ranked.job.id, uuid7())
            found.append(self._describe(ranked, lease, choice.overtakes, choices.left.values(), self.load))
            choices.start(ranked, lease, found[-1].reuse)
        candidates[:] = choices.left.values()
        return found

    def _describe(
        self,
        ranked: Ranked,
        lease: Lease,
        overtakes: UUID | None,
        candidates: Iterable[Ranked],
        load: EngineLoad,
    ) -> ChosenJob:
        """Note that this candidate is to start, out of these, and describe what its claim needs."""
        known = self.queue.known
        family = known.family_of(ranked.job) if known is not None else family_of(ranked.job)
        reads_twice = known is not None and known.reads_twice(ranked.job)
        reuse, postponed = note_start(ranked, candidates, load, self.queue.policy.packing, known)
        return ChosenJob(ranked, lease, overtakes, reuse, None if reads_twice else family, postponed)

    def _start(self, chosen: Sequence[ChosenJob], *, answered: Collection[Lease] = ()) -> list[StartedJob]:
        """Claim these jobs, all but those that another engine was faster with or that were recounted.

        Args:
            chosen: the jobs.
            answered: leases of those that are answered.
        """
        policy, known = self.queue.policy, self.queue.known
        inside = self._inside()
        unsent = [each.ranked.job for each in chosen if each.lease.job_id not in inside]
        keep_prompts = policy.read_prompts(self.queue.session, unsent)
        started = lifecycle.claim(
            self.queue.session,
            [each.start() for each in chosen],
            lease_duration=policy.lease,
            engine_name=self.queue.engine.name,
            claimant=policy.claimant,
        )
        keep_prompts()
        jobs = {job.id: job for job in started}
        for each in chosen:
            if job := jobs.get(each.lease.job_id):
                size, guest = each.ranked.size, each.guest()
                if each.lease not in answered:
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
        return started

    def _hold(self, late: Iterable[ChosenJob]) -> None:
        """Hold the room of requests whose jobs cannot start, until they are stopped."""
        for each in late:
            self.load = with_started(self.load, each.ranked, each.lease, Reuse())

    def _send(self, chosen: Sequence[ChosenJob]) -> None:
        """Send what can be sent before its claim, unless another engine may be faster."""
        if self.queue.policy.has_rivals:
            return
        excluded = left_out(self.queue.session)
        ready = [each for each in chosen if each.lease.job_id not in excluded]
        begun = [HeadStart(each.ranked, each.lease, each.overtakes) for each in ready]
        leases = self.begun.send(begun)
        self.sent += [each for each in begun if each.lease in leases]
