"""The claim: one transaction that reserves slots and blocks and puts jobs under leases."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Session

from jobs import lifecycle
from jobs.database import direct
from jobs.engines import reservations
from jobs.engines.registry import EngineRow
from jobs.ids import uuid7
from jobs.queries import QueuedJob
from jobs.scheduling import engine_load
from jobs.scheduling.choosing import Choices, ChosenJob, note_start, with_started
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.engine_prefixes import family_of
from jobs.scheduling.engine_queue import EngineQueue
from jobs.scheduling.followers import Reuse
from jobs.scheduling.head_starts import NOTHING_BEGUN, Begun, HeadStart, Outlook, refilled
from jobs.scheduling.preemption import choose_preemptions
from jobs.scheduling.prefix_replay import Answered
from jobs.scheduling.previews import Preview
from jobs.scheduling.ranking import Ranked
from jobs.scheduling.sizing import ClaimPolicy
from jobs.scheduling.waiting import WaitingTenants
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


@dataclass(frozen=True, slots=True)
class FreedSlot:
    """A job whose request is over, as the engine confirmed; its end is not recorded yet.

    Attributes:
        lease_id: of the reservation to close.
        generated_tokens: in all, in earlier runs too.
        cached_tokens: of its prompt, that the engine had; None: it did not tell.
    """

    lease_id: UUID
    generated_tokens: int
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """What a transaction knows since it locked the engine; what is None is read when it is needed.

    Attributes:
        load: of the engine, since reservations were closed too.
        queued: ids of the preview's candidates that are queued yet, if other engines take from the queue.
        waiting: who waits for the engine's model.
        first: the first batch jobs of one of these.
    """

    load: EngineLoad | None = None
    queued: Collection[UUID] | None = None
    waiting: WaitingTenants | None = None
    first: Sequence[QueuedJob] = ()


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The outcome of one pass over the queue.

    Attributes:
        claims: of the jobs that run now.
        free_slots: slots that the engine has left.
        asked_for_room: batch jobs were asked to leave for an interactive one.
        left: candidates that were read and did not start; None: the queue was not read.
        outlook: what the next choice is foretold from; None: it cannot be.
    """

    claims: Sequence[Claim] = ()
    free_slots: int = 0
    asked_for_room: bool = False
    left: Sequence[Ranked] | None = None
    outlook: Outlook | None = None


def start_jobs(
    session: Session,
    locked: tuple[EngineRow, datetime] | None,
    policy: ClaimPolicy,
    *,
    ahead: ReadAhead | None = None,
    preview: Preview | None = None,
    limit: int | None = None,
    ended: Sequence[FreedSlot] = (),
    begun: Begun = NOTHING_BEGUN,
) -> ClaimResult:
    """Start every job that may start on this engine now and reserve its blocks; `ticks.tick` calls this.

    The job of a head start goes first, as it would have if this were the moment of its beginning. If it is no
    longer queued, or has no room, its place becomes a draining reservation, until its request is over.

    Args:
        session: the caller's transaction.
        locked: the engine's row and the time, as `engine_load.lock` returned them in this transaction.
        policy: of the claims.
        ahead: what has been read since then; None: nothing.
        preview: candidates read a moment ago; the queue is read again only if a slot stays free, or if jobs
            wait that begin with what the engine has, and it has none of them.
        limit: most jobs to start; None: as many as there are slots.
        ended: jobs whose reservations this transaction has closed.
        begun: what is in the engine already.
    """
    if locked is None:
        return ClaimResult()
    result = _start_jobs(
        session, locked, policy, ahead=ahead, preview=preview, limit=limit, ended=ended, begun=begun
    )
    direct.send_later(session)  # accounts of tenants that came and had nothing started
    keep_places(session, locked[0].name, begun.places({each.lease for each in result.claims}))
    return result


def keep_places(session: Session, engine_name: str, left: Sequence[HeadStart]) -> None:
    """Let the places of head starts whose jobs are not claimed drain, until their requests are over."""
    if left:
        places = [(each.lease.lease_id, each.lease.job_id, each.ranked.candidate.blocks) for each in left]
        reservations.keep_places(session, engine_name, places)


def _start_jobs(
    session: Session,
    locked: tuple[EngineRow, datetime],
    policy: ClaimPolicy,
    *,
    ahead: ReadAhead | None,
    preview: Preview | None,
    limit: int | None,
    ended: Sequence[FreedSlot],
    begun: Begun,
) -> ClaimResult:
    engine, now = locked
    if engine.paused_reason is not None:
        return ClaimResult()
    ahead = ahead or ReadAhead()
    load = ahead.load or engine_load.read(session, engine)
    if policy.replay is not None:
        answered = {each.lease_id: Answered(each.generated_tokens, each.cached_tokens) for each in ended}
        policy.replay.observe(load.guests, capacity=load.capacity, answered=answered)
    if engine.halt is not None:
        return ClaimResult()
    in_reserved, following = begun.split()
    for each in in_reserved:
        load = refilled(load, each)
    queue = EngineQueue(
        session,
        engine,
        now,
        load,
        policy,
        marks_idle=not ended,
        waiting=ahead.waiting,
        first=ahead.first,
    )
    if load.budget.free_slots < 1 and not load.interactive_waits:
        return ClaimResult(outlook=None if begun.claimed_now else queue.outlook(load))
    starting = _Starting(queue, load, limit, begun.job_ids)
    starting.start_begun(begun)
    for each in following:
        starting.load = refilled(starting.load, each)
    # An interactive job may have come since the preview, and batch jobs may have left to make room for it.
    is_usable = preview is not None and not load.interactive_waits and not starting.is_full
    if preview is not None and is_usable and not queue.has_followers_beyond(preview.candidates):
        # Of equal jobs those of this engine come first: before another's, the queue may have more of them.
        starting.start(queue.still_waiting(preview.candidates, ahead.queued), may_start=queue.is_ours)
    asked_for_room, left = False, None
    if not starting.claims or not starting.is_full:
        elsewhere = queue.elsewhere()
        left = starting.start(queue.head(elsewhere=elsewhere))
        if elsewhere and not starting.claims and load.budget.idle:
            # What is left begins with what other engines have: better one of those than nothing.
            starting.limit = 1
            left = starting.start(queue.head(elsewhere=frozenset()))
        asked_for_room = bool(left) and not starting.is_done and starting.ask_for_room(left)
    outlook = None if asked_for_room else queue.outlook(starting.load)
    return ClaimResult(starting.claims, starting.load.budget.free_slots, asked_for_room, left, outlook)


@dataclass(slots=True)
class _Starting:
    """The jobs that start on an engine within one transaction, which holds the engine's row.

    Attributes:
        sent: jobs whose requests are in the engine already: no other claim of this transaction is for them.
    """

    queue: EngineQueue
    load: EngineLoad
    limit: int | None
    sent: frozenset[UUID]
    claims: list[Claim] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """True if no slot is left."""
        return self.load.budget.free_slots < 1

    @property
    def is_done(self) -> bool:
        """True if as many jobs have started as the caller asked for."""
        return self.limit is not None and len(self.claims) >= self.limit

    def start(
        self, candidates: list[Ranked], *, may_start: Callable[[Ranked], bool] = lambda _: True
    ) -> list[Ranked]:
        """Start those candidates that may start now and return the others.

        Args:
            candidates: in rank order.
            may_start: stop at the first choice for which this is False.
        """
        candidates = [each for each in candidates if each.job.id not in self.sent]
        if self.queue.known is not None:
            self.queue.known.know([each.job for each in candidates])
        while candidates and not self.is_done and (chosen := self._choose(candidates, may_start)):
            started = self._start(chosen)
            if len(started) == len(chosen):
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

    def start_begun(self, begun: Begun) -> None:
        """Start the jobs of head starts, as a tick at the moment of each would have; hold the room of others.

        Of those that cannot start the requests are in the engine, until they are stopped. Those that are
        answered take no room: their ends are stored in this transaction.
        """
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
        for late in chosen:
            if late.lease.job_id not in started and late.lease not in answered:
                self.load = with_started(self.load, late.ranked, late.lease, Reuse())

    def _choose(self, candidates: list[Ranked], may_start: Callable[[Ranked], bool]) -> list[ChosenJob]:
        """Take those that fit together out of the candidates, as if each started at once."""
        known, found = self.queue.known, list[ChosenJob]()
        choices = Choices(candidates, self.load, self.queue.packing, known)
        while self.limit is None or len(self.claims) + len(found) < self.limit:
            chosen = choices.choose()
            if chosen is None or not may_start(chosen[0]):
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
        reuse, postponed = note_start(ranked, candidates, load, self.queue.packing, known)
        return ChosenJob(ranked, lease, overtakes, reuse, None if reads_twice else family, postponed)

    def _start(self, chosen: Sequence[ChosenJob], *, answered: Collection[Lease] = ()) -> list[StartedJob]:
        """Claim these jobs, all but those that another engine was faster with or that were recounted.

        Args:
            chosen: the jobs.
            answered: leases of those that are answered.
        """
        policy, known = self.queue.policy, self.queue.known
        unsent = [each.ranked.job for each in chosen if each.lease.job_id not in self.sent]
        keep_prompts = policy.read_prompts(self.queue.session, unsent)
        started = lifecycle.claim(
            self.queue.session,
            [each.start() for each in chosen],
            lease_duration=policy.lease,
            engine_name=self.queue.engine.name,
            worker=policy.worker,
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
