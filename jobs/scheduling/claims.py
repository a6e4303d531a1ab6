"""The claim: one transaction that reserves slots and blocks and puts jobs under leases."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs import lifecycle
from jobs.engines import reservations
from jobs.engines.registry import EngineRow
from jobs.ids import uuid7
from jobs.models import Engine
from jobs.scheduling import engine_load, engine_prefixes
from jobs.scheduling.candidates import followers
from jobs.scheduling.choosing import Postponed, choose_ranked, note_start, with_started, without
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.engine_prefixes import EnginePrefixes, family_of
from jobs.scheduling.followers import Family, Reader, Reuse
from jobs.scheduling.preemption import choose_preemptions
from jobs.scheduling.prefix_replay import Answered, Guest
from jobs.scheduling.ranking import Ranked, Ranking, charge_of, prompt_charge_of
from jobs.scheduling.sizing import ClaimPolicy, Sizer
from jobs.starting import Start, StartedJob
from jobs.states import Lane
from jobs.transitions import Lease

# Running jobs whose end a preview tries one by one. In a larger batch, what would start if all ended says
# nearly the same.
_MAX_ENDS: Final = 16
# Prompt tokens that are read ahead besides those of the jobs that start next: a few documents, or all
# candidates with short prompts, which may all have ended before the next preview.
_MAX_SHORT_TOKENS: Final = 32_768


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that is ours to run.

    Attributes:
        lease: the fence for every later write.
        blocks: KV blocks reserved for it.
        output_tokens: output that the blocks cover besides the prompt, including that of earlier runs.
        job: its row at the claim.
        is_reader: it reads what others of its family may wait for.
        is_first: no engine had the job before.
    """

    lease: Lease
    blocks: int
    output_tokens: int
    job: StartedJob
    is_reader: bool = False
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
class Preview:
    """What `preview_claims` found a moment ago.

    Attributes:
        candidates: the head of the queue.
        text_ids: prompts of the jobs likely to start next: now, or once one or all running jobs end.
    """

    candidates: Sequence[Ranked] = ()
    text_ids: Sequence[UUID] = ()


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The outcome of one pass over the queue.

    Attributes:
        claims: of the jobs that run now.
        free_slots: slots that the engine has left.
        asked_for_room: batch jobs were asked to leave for an interactive one.
        left: candidates that were read and did not start; None: the queue was not read.
    """

    claims: Sequence[Claim] = ()
    free_slots: int = 0
    asked_for_room: bool = False
    left: Sequence[Ranked] | None = None


def claim(session: Session, engine_name: str, policy: ClaimPolicy) -> Claim | None:
    """Start the next job for this engine and reserve its blocks.

    Returns:
        None if no job may start now.
    """
    return next(iter(claim_all(session, engine_name, policy, limit=1).claims), None)


def claim_all(
    session: Session,
    engine_name: str,
    policy: ClaimPolicy,
    *,
    ended: Sequence[FreedSlot] = (),
    preview: Preview | None = None,
    limit: int | None = None,
) -> ClaimResult:
    """Start every job that may start on this engine now and reserve its blocks.

    Args:
        session: the caller's transaction.
        engine_name: where they are to run.
        policy: of the claims.
        ended: jobs whose reservations to close first.
        preview: candidates read a moment ago; the queue is read again only if a slot stays free, or if jobs
            wait that begin with what the engine has, and it has none of them.
        limit: most jobs to start; None: as many as there are slots.
    """
    locked = engine_load.lock(session, engine_name)
    freed = {each.lease_id: (each.generated_tokens, each.cached_tokens) for each in ended}
    reservations.close_all(session, freed)
    return start_jobs(session, locked, policy, preview=preview, limit=limit, ended=ended)


def start_jobs(
    session: Session,
    locked: tuple[EngineRow, datetime] | None,
    policy: ClaimPolicy,
    *,
    preview: Preview | None = None,
    limit: int | None = None,
    ended: Sequence[FreedSlot] = (),
) -> ClaimResult:
    """Start every job that may start on an engine that `engine_load.lock` locked in this transaction.

    The other arguments are those of `claim_all`; the reservations of `ended` are closed already.
    """
    if locked is None or locked[0].paused_reason is not None:
        return ClaimResult()
    engine, now = locked
    load = engine_load.read(session, engine)
    if policy.replay is not None:
        answered = {each.lease_id: Answered(each.generated_tokens, each.cached_tokens) for each in ended}
        policy.replay.observe(load.guests, capacity=load.capacity, answered=answered)
    if engine.halt is not None or (load.budget.free_slots < 1 and not load.interactive_waits):
        return ClaimResult()
    known = EnginePrefixes(session, policy.replay, load) if policy.replay is not None else None
    starting = _Starting(session, engine.name, load, policy, limit, known)
    # An interactive job may have come since the preview, and batch jobs may have left to make room for it.
    is_usable = preview is not None and not load.interactive_waits
    if preview is not None and is_usable and not _lacks_followers(session, engine, load, now, preview, known):
        starting.start(list(preview.candidates))
    asked_for_room, left = False, None
    if not starting.claims or not starting.is_full:
        elsewhere = _elsewhere(session, engine, known)
        left = starting.start(_candidates(session, engine, load, policy, now, known, elsewhere))
        if elsewhere and not starting.claims and load.budget.idle:
            # What is left begins with what other engines have: better one of those than nothing.
            starting.limit = 1
            left = starting.start(_candidates(session, engine, load, policy, now, known, frozenset()))
        asked_for_room = (
            bool(left) and not starting.is_done and _ask_for_room(session, left, starting.load, policy)
        )
    return ClaimResult(starting.claims, starting.load.budget.free_slots, asked_for_room, left)


def _lacks_followers(
    session: Session,
    engine: Engine | EngineRow,
    load: EngineLoad,
    now: datetime,
    preview: Preview,
    known: EnginePrefixes | None,
) -> bool:
    """Return True if a document is here of which jobs wait, and the preview has none of them.

    They waited for it then, or others have started since.
    """
    if known is None:
        return False
    there = {family_of(each.job) for each in preview.candidates}
    lacking = [family for family in known.here if family not in there]
    return bool(followers(session, engine.model, Lane.BATCH, lacking, capacity=load.capacity, now=now))


def preview_claims(session: Session, engine_name: str, policy: ClaimPolicy) -> Preview:
    """Predict what the next claims on this engine will choose from, and their choice.

    Locks no job and no engine. Updates the accounts, because claims that trust this preview do not.
    """
    found = engine_load.find(session, engine_name)
    if found is None or found[0].halt is not None:
        return Preview()
    engine, now = found
    load = engine_load.read(session, engine)
    known = EnginePrefixes(session, policy.replay, load) if policy.replay is not None else None
    elsewhere = _elsewhere(session, engine, known)
    candidates = _candidates(session, engine, load, policy, now, known, elsewhere)
    text_ids: dict[UUID, None] = {}  # in order, each once
    for ended in (None, *islice(load.running, _MAX_ENDS)):
        choice = choose_ranked(
            candidates, load if ended is None else without(load, ended), policy.packing, known
        )
        text_ids.update({each.job.text_id: None for each in candidates if each.job.id == choice.start})
    text_ids.update(dict.fromkeys(_texts_of_next_round(candidates, load, policy, known)))
    text_ids.update(dict.fromkeys(_short_texts(candidates)))
    return Preview(candidates, list(text_ids))


def _elsewhere(
    session: Session, engine: Engine | EngineRow, known: EnginePrefixes | None
) -> AbstractSet[Family]:
    """Find the families that this engine leaves to others of its model, which have them."""
    if known is None:
        return frozenset()
    return engine_prefixes.elsewhere(session, engine.name, engine.model) - {*known.here, *known.reading}


def _candidates(
    session: Session,
    engine: Engine | EngineRow,
    load: EngineLoad,
    policy: ClaimPolicy,
    now: datetime,
    known: EnginePrefixes | None,
    elsewhere: AbstractSet[Family],
) -> list[Ranked]:
    """Read the head of the queue, without batch jobs that begin with what other engines have."""
    sizer = Sizer(session, load.capacity, policy)
    ranking = Ranking(
        session,
        engine.model,
        load.capacity,
        policy,
        sizer,
        now,
        known=known,
        elsewhere=elsewhere,
        engine_name=engine.name,
    )
    return ranking.head()


@dataclass(slots=True)
class _Starting:
    """The jobs that start on an engine within one transaction, which holds the engine's row."""

    session: Session
    engine_name: str
    load: EngineLoad
    policy: ClaimPolicy
    limit: int | None
    known: EnginePrefixes | None = None
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
        """Start those candidates that may start now and return the others."""
        if self.known is not None:
            self.known.know([each.job for each in candidates])
        while candidates and not self.is_done and (chosen := self._choose(candidates)):
            started = self._start(chosen)
            if len(started) == len(chosen):
                break  # no other fits now
        return candidates

    def _choose(self, candidates: list[Ranked]) -> list["_Chosen"]:
        """Take those that fit together out of the candidates, as if each started at once."""
        load, found = self.load, list[_Chosen]()
        while self.limit is None or len(self.claims) + len(found) < self.limit:
            choice = choose_ranked(candidates, load, self.policy.packing, self.known)
            if choice.start is None:
                break
            ranked = next(each for each in candidates if each.job.id == choice.start)
            reads_twice = self.known is not None and self.known.reads_twice(ranked.job)
            reuse, postponed = note_start(ranked, candidates, load, self.known)
            candidates.remove(ranked)
            lease = Lease(ranked.job.id, uuid7())
            found.append(_Chosen(ranked, lease, choice.overtakes, reuse, reads_twice, postponed))
            load = with_started(load, ranked, lease, reuse)
        return found

    def _start(self, chosen: Sequence["_Chosen"]) -> list[StartedJob]:
        """Claim these jobs, all but those that another engine was faster with or that were recounted."""
        started = lifecycle.claim(
            self.session,
            [each.start() for each in chosen],
            lease_duration=self.policy.lease,
            engine_name=self.engine_name,
            worker=self.policy.worker,
        )
        jobs = {job.id: job for job in started}
        for each in chosen:
            if job := jobs.get(each.lease.job_id):
                size, guest = each.ranked.size, each.guest()
                self.load = with_started(self.load, each.ranked, each.lease, each.reuse)
                is_reader = self.known is not None and guest.reader is not None and each.reuse.anchor is None
                is_first = each.ranked.job.started_at is None
                self.claims.append(
                    Claim(each.lease, size.blocks, size.output_tokens, job, is_reader, is_first)
                )
                if self.known is not None:
                    self.known.replay.start(each.lease.lease_id, guest, reused_tokens=each.reuse.tokens)
        return started


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A candidate that may start.

    Attributes:
        ranked: the candidate.
        lease: the fence that it will have.
        overtakes: a better ranked job that its growth must not postpone.
        reuse: what the engine has of its prompt.
        reads_twice: it reads what another one has, into blocks of its own.
        postponed: the job that it overtakes as a follower.
    """

    ranked: Ranked
    lease: Lease
    overtakes: UUID | None
    reuse: Reuse
    reads_twice: bool
    postponed: Postponed | None

    def guest(self) -> Guest:
        """Describe it as a running job, for its family if it has one."""
        job, size, family = self.ranked.job, self.ranked.size, family_of(self.ranked.job)
        reader = None
        if family is not None and not self.reads_twice:
            reader = Reader(family, job.id, job.text_id, size.blocks, has_read=False, rank=job.rank)
        return Guest(reader, size.blocks, size.output_tokens)

    def start(self) -> Start:
        """Describe how it starts."""
        job, size = self.ranked.job, self.ranked.size
        return Start(
            self.lease,
            job,
            blocks=size.blocks,
            output_tokens=size.output_tokens,
            overtakes=self.overtakes,
            alone=self.ranked.candidate.alone,
            charge=charge_of(job, size, reused_tokens=self.reuse.tokens),
            charged_prompt=prompt_charge_of(job, reused_tokens=self.reuse.tokens),
            shared_blocks=self.reuse.blocks,
            anchor=self.reuse.anchor,
            leaves_family=self.reads_twice,
            postponed_id=self.postponed.job_id if self.postponed else None,
            postponed_steps=self.postponed.steps if self.postponed else None,
        )


def _short_texts(candidates: Sequence[Ranked]) -> Iterator[UUID]:
    """Yield the texts of the first jobs, all together no longer than a long prompt: short ones end soon."""
    num_tokens = 0
    for each in candidates:
        num_tokens += each.job.prompt_tokens
        if num_tokens > _MAX_SHORT_TOKENS:
            return
        yield each.job.text_id


def _texts_of_next_round(
    candidates: Sequence[Ranked], load: EngineLoad, policy: ClaimPolicy, known: EnginePrefixes | None
) -> list[UUID]:
    """Find the texts of jobs that would start if all running jobs ended together.

    Jobs of equal length do.
    """
    left, text_ids = list(candidates), []
    for lease_id in load.running:
        load = without(load, lease_id)
    while left and (choice := choose_ranked(left, load, policy.packing, known)).start is not None:
        chosen = next(each for each in left if each.job.id == choice.start)
        left.remove(chosen)
        text_ids.append(chosen.job.text_id)
        reuse = known.reuse(chosen.job) if known is not None else Reuse()
        load = with_started(load, chosen, Lease(chosen.job.id, uuid7()), reuse)
    return text_ids


def _ask_for_room(
    session: Session, candidates: Sequence[Ranked], load: EngineLoad, policy: ClaimPolicy
) -> bool:
    """Ask batch jobs to leave for the first interactive one.

    Returns:
        True if any was asked.
    """
    if not policy.preempts or candidates[0].candidate.lane is not Lane.INTERACTIVE:
        return False
    leaving = choose_preemptions(
        candidates[0].candidate,
        list(load.running.values()),
        load.budget,
        max_batch_size=load.capacity.max_batch_size,
        policy=policy.packing,
        batch_waits=any(each.candidate.lane is Lane.BATCH for each in candidates),
    )
    return bool(leaving) and lifecycle.request_preemption(session, leaving) > 0
