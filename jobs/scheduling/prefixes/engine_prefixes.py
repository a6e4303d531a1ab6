"""What an engine has of prompts at one moment: what its running jobs refer to, and what ended ones left."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
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
from jobs.scheduling.packing import Candidate, Family, Reserved, Reuse
from jobs.scheduling.prefixes.followers import with_reuse
from jobs.scheduling.prefixes.prefix_replay import PrefixReplay
from jobs.starting import Claim
from jobs.states import Lane


@dataclass(slots=True)
class EnginePrefixes:
    """What an engine has of prompts at one moment, within one transaction.

    Attributes:
        readers: by family, its running jobs that have read their prompts, by lease.
        reading: families that are just being read and are not here otherwise, with the oldest job that reads.
        ranks: the highest of the jobs that read these.
        ended: families of which ended jobs left a prompt, with its text.
        charged: tokens that tenants pay for jobs which start in this transaction.
    """

    session: Session
    replay: PrefixReplay
    load: EngineLoad
    readers: dict[Family, dict[UUID, Reserved]] = field(default_factory=dict)
    reading: dict[Family, UUID] = field(default_factory=dict)
    ranks: dict[Family, int] = field(default_factory=dict)
    ended: dict[Family, UUID] = field(default_factory=dict)
    charged: Counter[UUID] = field(default_factory=Counter)
    _texts: dict[UUID, StoredPrefixes] = field(default_factory=dict)
    _readings: dict[Family, UUID] = field(default_factory=dict)  # the text of each that is just being read
    _joined: dict[UUID, Family] = field(default_factory=dict)  # by job, where its length says another family
    _reuses: dict[UUID, Reuse] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sort the running jobs by what they have read."""
        for lease_id, job in self.load.reserved.items():
            if job.family is not None and job.has_read:
                self.readers.setdefault(job.family, {})[lease_id] = job
        for job in sorted(self.load.reserved.values(), key=lambda each: each.job_id):
            if job.family is not None and job.family not in self.readers:
                self._note_reading(job.family, job.job_id, job.text_id, rank=job.rank)
        self.ended = {
            family: text_id
            for family, text_id in self.replay.ended().items()
            if family not in self.readers and family not in self.reading
        }

    @property
    def here(self) -> list[Family]:
        """Families of which the engine has a prompt; first those that are certain to stay."""
        return [*self.readers, *self.ended]

    def sought(self, families: Sequence[Family]) -> list[Family]:
        """Return these families, which are here, and those of longer and shorter prompts that begin alike."""
        near, texts = dict[UUID, Family](), dict[Family, StoredPrefixes]()
        for held in families:
            readers = self.readers.get(held, {}).values()
            near |= {each.text_id: held for each in readers if _is_near_others(each.prompt_tokens)}
        if near:
            read = self.replay.prefixes(self.session, near)
            texts = {near[text_id]: each for text_id, each in read.items()}
        known = self.replay.known_prefixes(self.ended.values())
        texts |= {held: known[text_id] for held, text_id in self.ended.items() if text_id in known}
        others = [
            Family(held.tenant_id, other)
            for held, each in texts.items()
            for other in (longer_family(each), shorter_family(each))
            if held in families and other is not None
        ]
        return list(dict.fromkeys([*families, *others]))

    def family_of(self, job: QueuedJob) -> Family | None:
        """Return the family of a queued job, as `compare` found it; None if it has none."""
        return self._joined.get(job.id) or family_of(job)

    def note_chosen(self, job: QueuedJob, *, num_charged: int) -> None:
        """Note that this job is about to start: unless its document is here for certain, it reads it."""
        self.charged[job.tenant_id] += num_charged
        family = self.family_of(job)
        if family is not None and family not in self.readers:
            self._note_reading(family, job.id, job.text_id, rank=job.rank)
            self.ended.pop(family, None)
            self._reuses.clear()

    def note_claimed(self, claim: Claim) -> None:
        """Note that this job has started, for later transactions."""
        job = claim.job
        reserved = Reserved(
            job.id,
            claim.blocks,
            claim.steps,
            output_tokens=claim.output_tokens,
            family=None if claim.family is None else Family(job.tenant_id, claim.family),
            text_id=job.text_id,
            reserved_blocks=claim.blocks,
            rank=job.rank,
            prompt_tokens=job.prompt_tokens,
        )
        self.replay.start(
            claim.lease.lease_id,
            reserved,
            reused_tokens=claim.reused_tokens,
            postpones=claim.postponed_id,
            likely_tokens=claim.likely_tokens,
        )

    def described(self, candidate: Candidate, job: QueuedJob) -> Candidate:
        """Return a candidate with what the engine has of its prompt now."""
        charged = self.charged.get(job.tenant_id, 0)
        return replace(
            with_reuse(candidate, self.reuse(job), is_credited=self.replay.is_credited),
            family=self.family_of(job),
            lead=candidate.lead + charged / candidate.weight,
            is_waiting=(job.choice > 0 or candidate.lane is Lane.BATCH) and self.is_waiting(job),
        )

    def compare(self, jobs: Collection[QueuedJob]) -> None:
        """Read what is needed to compare these jobs with what is here, and with each other.

        Their accounts have what was charged before.
        """
        self._reuses.clear()
        self.charged.clear()
        self._join(jobs)
        mine = [job for job in jobs if self.is_here(job)]
        if not mine:
            return
        families = {self.family_of(job) for job in mine}
        texts = {job.text_id for job in mine}
        texts |= {text_id for each, text_id in self.ended.items() if each in families}
        for each, found in self.readers.items():
            if each in families:
                texts |= {reader.text_id for reader in found.values()}
        self._texts = self.replay.prefixes(self.session, texts)

    def concerns(self, job: QueuedJob) -> bool:
        """Return True if the engine has, or just reads, what this job may begin with."""
        family = self.family_of(job)
        return family in self.readers or family in self.reading or family in self.ended

    def is_here(self, job: QueuedJob) -> bool:
        """Return True if the engine has what this job begins with, all of it read."""
        family = self.family_of(job)
        return family in self.readers or family in self.ended

    def is_waiting(self, job: QueuedJob) -> bool:
        """Return True if an older job, or one of a higher rank, is just reading what this one begins with."""
        family = self.family_of(job)
        if family is None or (reader := self.reading.get(family)) is None:
            return False
        return reader < job.id or self.ranks[family] > job.rank

    def reads_twice(self, job: QueuedJob) -> bool:
        """Return True if the job would read what a running one has read or is reading, and share no block."""
        family = self.family_of(job)
        return family in self.reading or (family in self.readers and not self.reuse(job).blocks)

    def reuse(self, job: QueuedJob) -> Reuse:
        """Find what of this job's prompt is here; at least one token must be computed."""
        if job.id not in self._reuses:
            self._reuses[job.id] = self._reuse(job)
        return self._reuses[job.id]

    def _join(self, jobs: Collection[QueuedJob]) -> None:
        """Find the jobs whose length puts them into another family than others about their document.

        Their prompts have the hashes of both. What the engine has goes before what other jobs begin with.
        """
        self._joined.clear()
        queued = {family_of(job) for job in jobs}
        near = [
            job
            for job in jobs
            if _is_near_others(job.prompt_tokens)
            and (usual := family_of(job)) is not None
            and self._text_of(usual) is None
        ]
        prefixes = self.replay.prefixes(self.session, {job.text_id for job in near}) if near else {}
        for job in near:
            if (mine := prefixes.get(job.text_id)) is None:
                continue
            digests = (family(mine.prefixes, mine.num_tokens), longer_family(mine))
            same = [each for digest in digests if (each := _named(job, digest)) is not None]
            here = [each for each in same if self._text_of(each) is not None]
            shorter = _named(job, shorter_family(mine))
            if shorter is not None and self._begins_with(mine, shorter):
                here.append(shorter)
            if found := here or [each for each in same if each in queued and each != family_of(job)]:
                self._joined[job.id] = found[-1]

    def _begins_with(self, mine: StoredPrefixes, shorter: Family) -> bool:
        """Return True if the engine has a shorter prompt that shares all that this one's family shares."""
        text_id = self._text_of(shorter)
        theirs = self.replay.prefixes(self.session, [text_id]).get(text_id) if text_id else None
        return theirs is not None and shared_tokens(mine, theirs) >= family_tokens(mine.num_tokens)

    def _text_of(self, family: Family) -> UUID | None:
        """Return a prompt of this family that the engine has or reads; None: it has none."""
        if readers := self.readers.get(family):
            return next(iter(readers.values())).text_id
        return self._readings.get(family) or self.ended.get(family)

    def _note_reading(self, family: Family, job_id: UUID, text_id: UUID, *, rank: int) -> None:
        self.reading.setdefault(family, job_id)
        self._readings.setdefault(family, text_id)
        self.ranks[family] = max(rank, self.ranks.get(family, rank))

    def _reuse(self, job: QueuedJob) -> Reuse:
        family = self.family_of(job)
        if family is None:
            return Reuse()
        if readers := self.readers.get(family):
            tokens = self._shared(job, [each.text_id for each in readers.values()])
            blocks = tokens // self.load.capacity.tokens_per_block
            return Reuse(tokens, blocks, next(iter(readers)) if blocks else None)
        ended = self.ended.get(family)
        return Reuse() if ended is None else Reuse(self._shared(job, [ended]))

    def _shared(self, job: QueuedJob, text_ids: Sequence[UUID]) -> int:
        """Count the tokens that the job surely shares with all of these prompts."""
        mine, most = self._texts.get(job.text_id), job.prompt_tokens - 1
        others = [self._texts.get(each) for each in dict.fromkeys(text_ids)]
        if mine is None or None in others:
            certain = family_tokens(job.prompt_tokens)
            return min(certain // 2 if job.id in self._joined else certain, most)
        return min(most, *(shared_tokens(mine, each) for each in others if each is not None))


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
    WHERE engines.model = %(model)s::text AND engines.name <> %(engine_name)s::text
        AND engines.paused_reason IS NULL AND engines.halt IS NULL
        AND reservations.state = 'held' AND jobs.family IS NOT NULL
    """)
