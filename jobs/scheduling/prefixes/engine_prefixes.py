"""What an engine has of prompts at one moment: what its running jobs refer to, and what ended ones left."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.statements import Statement
from jobs.prompts.prefixes import (
    StoredPrefixes,
    adapted,
    family,
    family_tokens,
    longer_family,
    longer_tokens,
    shared_tokens,
    shorter_family,
    shorter_tokens,
)
from jobs.queries import QueuedJob
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.packing import Family, Reuse
from jobs.scheduling.prefixes.prefix_replay import PrefixReplay
from jobs.states import Lane


@dataclass(slots=True)
class CachedPrefix:
    """What the prompts of one family begin with, as an engine has it.

    It is being read, or running jobs have read it, or ended ones left it.

    Attributes:
        prompts: that begin with it, and their lengths, by text.
        reader: the oldest job that is just reading it; None: it is read.
        rank: the highest of the jobs that are reading it.
        anchor: the lease of a running job that has read it, so it is certain to stay; None: there is none.
    """

    prompts: dict[UUID, int]
    reader: UUID | None = None
    rank: int = 0
    anchor: UUID | None = None


@dataclass(slots=True)
class EnginePrefixes:
    """What an engine has of prompts at one moment, within one transaction.

    Attributes:
        families: of which it has a prompt, or reads one; first those that are certain to stay.
    """

    session: Session
    replay: PrefixReplay
    load: EngineLoad
    families: dict[Family, CachedPrefix] = field(default_factory=dict)
    _texts: dict[UUID, StoredPrefixes] = field(default_factory=dict)
    _joined: dict[UUID, Family] = field(default_factory=dict)  # by job, where its length says another family
    _reuses: dict[UUID, Reuse] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sort the running jobs by what they have read."""
        for lease_id, job in self.load.reserved.items():
            if job.family is not None and job.has_read:
                found = self.families.setdefault(job.family, CachedPrefix({}, anchor=lease_id))
                found.prompts[job.text_id] = job.prompt_tokens
        for job in sorted(self.load.reserved.values(), key=lambda each: each.job_id):
            if job.family is not None and not job.has_read:
                self._read(job.family, job.job_id, {job.text_id: job.prompt_tokens}, rank=job.rank)
        for each, left in self.replay.ended().items():
            self.families.setdefault(each, CachedPrefix({left.text_id: left.prompt_tokens}))

    @property
    def being_read(self) -> dict[Family, UUID]:
        """Families that are just being read, each with the oldest job that reads."""
        return {each: held.reader for each, held in self.families.items() if held.reader is not None}

    def families_of_followers(self, tenants: Collection[UUID]) -> list[Family]:
        """Find the families of these tenants whose jobs may begin with what the engine has.

        Those that it has, and those of longer and shorter prompts that begin alike.
        """
        here = {
            each: held
            for each, held in self.families.items()
            if held.reader is None and each.tenant_id in tenants
        }
        near = {
            text_id: each
            for each, held in here.items()
            for text_id, num_tokens in held.prompts.items()
            if _is_near_others(num_tokens)
        }
        others = [
            Family(near[text_id].tenant_id, other)
            for text_id, stored in self.replay.prefixes(self.session, near).items()
            for other in (longer_family(stored), shorter_family(stored))
            if other is not None
        ]
        return list(dict.fromkeys([*here, *others]))

    def compare(self, jobs: Collection[QueuedJob]) -> None:
        """Read what is needed to compare these jobs with what is here, and with each other."""
        self._reuses.clear()
        self._join(jobs)
        texts = set[UUID]()
        for job in jobs:
            if (held := self._cached(job)) is not None and held.reader is None:
                texts |= {job.text_id, *held.prompts}
        self._texts = self.replay.prefixes(self.session, texts)

    def family_of(self, job: QueuedJob) -> Family | None:
        """Return the family of a queued job, as `compare` found it; None if it has none."""
        return self._joined.get(job.id) or family_of(job)

    def is_here(self, job: QueuedJob) -> bool:
        """Return True if the engine has what this job begins with, all of it read."""
        held = self._cached(job)
        return held is not None and held.reader is None

    def is_waiting(self, job: QueuedJob) -> bool:
        """Return True if the job waits until an older one, or one of a higher rank, has read its beginning.

        Interactive jobs do not wait, except the further choices of one request.
        """
        held = self._cached(job)
        if held is None or held.reader is None or (job.choice == 0 and job.lane == Lane.INTERACTIVE):
            return False
        return held.reader < job.id or held.rank > job.rank

    def reads_twice(self, job: QueuedJob) -> bool:
        """Return True if the job would read what a running one has read or is reading, and share no block."""
        held = self._cached(job)
        if held is None or (held.reader is None and held.anchor is None):
            return False
        return not self.reuse(job).blocks

    def reuse(self, job: QueuedJob) -> Reuse:
        """Find what of this job's prompt is here; at least one token must be computed."""
        if job.id not in self._reuses:
            self._reuses[job.id] = self._reuse(job)
        return self._reuses[job.id]

    def note_chosen(self, job: QueuedJob) -> None:
        """Note that this job is about to start, and reads its document unless that is certain to stay."""
        family = self.family_of(job)
        if family is not None:
            self._read(family, job.id, {job.text_id: job.prompt_tokens}, rank=job.rank)

    def _cached(self, job: QueuedJob) -> CachedPrefix | None:
        family = self.family_of(job)
        return None if family is None else self.families.get(family)

    def _read(self, family: Family, job_id: UUID, prompts: dict[UUID, int], *, rank: int) -> None:
        held = self.families.get(family)
        if held is not None and held.reader is not None:
            held.rank = max(rank, held.rank)
        elif held is None or held.anchor is None:
            self.families[family] = CachedPrefix(prompts, reader=job_id, rank=rank)
            self._reuses.clear()

    def _reuse(self, job: QueuedJob) -> Reuse:
        held = self._cached(job)
        if held is None or held.reader is not None:
            return Reuse()
        tokens = self._shared(job, held.prompts)
        blocks = tokens // self.load.capacity.tokens_per_block if held.anchor is not None else 0
        return Reuse(tokens, blocks, held.anchor if blocks else None)

    def _shared(self, job: QueuedJob, text_ids: Collection[UUID]) -> int:
        """Count the tokens that the job surely shares with all of these prompts."""
        mine, most = self._texts.get(job.text_id), job.prompt_tokens - 1
        others = [self._texts.get(each) for each in text_ids]
        if mine is None or None in others:
            certain = family_tokens(job.prompt_tokens)
            return min(certain // 2 if job.id in self._joined else certain, most)
        return min(most, *(shared_tokens(mine, each) for each in others if each is not None))

    def _join(self, jobs: Collection[QueuedJob]) -> None:
        """Find the jobs whose length puts them into another family than others about their document.

        Their prompts have the hashes of both.
        """
        self._joined.clear()
        usual = {job.id: each for job in jobs if (each := family_of(job)) is not None}
        near = [
            job
            for job in jobs
            if job.id in usual and usual[job.id] not in self.families and _is_near_others(job.prompt_tokens)
        ]
        prefixes = self.replay.prefixes(self.session, {job.text_id for job in near})
        queued = set(usual.values())
        for job in near:
            mine = prefixes.get(job.text_id)
            found = None if mine is None else self._other_family(job, mine, queued - {usual[job.id]})
            if found is not None:
                self._joined[job.id] = found

    def _other_family(
        self, job: QueuedJob, mine: StoredPrefixes, queued: Collection[Family]
    ) -> Family | None:
        """Return the family that a job joins: what the engine has goes before what other jobs begin with."""
        shorter = _named(job, shorter_family(mine))
        if shorter is not None and self._begins_with(mine, shorter):
            return shorter
        longer_first = (longer_family(mine), family(mine.prefixes, mine.num_tokens))
        same = [each for digest in longer_first if (each := _named(job, digest)) is not None]
        return next((each for known in (self.families, queued) for each in same if each in known), None)

    def _begins_with(self, mine: StoredPrefixes, shorter: Family) -> bool:
        """Return True if the engine has a shorter prompt that shares all that this one's family shares."""
        if (held := self.families.get(shorter)) is None:
            return False
        text_id = next(iter(held.prompts))
        theirs = self.replay.prefixes(self.session, [text_id]).get(text_id)
        return theirs is not None and shared_tokens(mine, theirs) >= family_tokens(mine.num_tokens)


def family_of(job: QueuedJob) -> Family | None:
    """Return the family of a queued job by its length; None if it has none."""
    return None if job.family is None else Family(job.tenant_id, job.family)


def _named(job: QueuedJob, digest: bytes | None) -> Family | None:
    """Return the family with this hash of a job's prompt, for its tenant and its adapter."""
    found = adapted(digest, job.adapter)
    return None if found is None else Family(job.tenant_id, found)


def _is_near_others(num_tokens: int) -> bool:
    """Return True if longer or shorter prompts about the same document may be of another family."""
    return bool(longer_tokens(num_tokens) or shorter_tokens(num_tokens))


def elsewhere(session: Session, engine_name: str, model: str) -> set[Family]:
    """Find the families of which another engine of this model, no smaller one, runs a job.

    One that starts no more jobs keeps none of them from others.
    """
    given = {"engine_name": engine_name, "model": model}
    return {Family(*row) for row in statements.fetch(session, _ELSEWHERE, given)}


_ELSEWHERE: Final = Statement("""
    SELECT DISTINCT jobs.tenant_id, jobs.family
    FROM engines JOIN engines AS mine ON mine.name = %(engine_name)s::text
        AND engines.max_input_len >= mine.max_input_len AND engines.max_seq_len >= mine.max_seq_len
        AND (engines.max_blocks - engines.blocks_per_sequence) * engines.tokens_per_block
            >= (mine.max_blocks - mine.blocks_per_sequence) * mine.tokens_per_block
    JOIN reservations ON reservations.engine_name = engines.name
    JOIN jobs ON jobs.id = reservations.job_id AND jobs.lease_id = reservations.lease_id
        AND jobs.id = ANY(ARRAY(SELECT job_id FROM reservations WHERE state = 'held'))
    WHERE engines.model = %(model)s::text AND engines.name <> %(engine_name)s::text
        AND engines.paused_reason IS NULL AND engines.halt IS NULL
        AND reservations.state = 'held' AND jobs.family IS NOT NULL
    """)
