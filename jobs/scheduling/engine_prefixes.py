"""What an engine has of prompts at one moment: what its running jobs refer to, and what ended ones left."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from sqlalchemy import LargeBinary, Text, Uuid, bindparam, text
from sqlalchemy.orm import Session

from jobs.database import direct
from jobs.database.hot import PREPARED
from jobs.prompts.prefixes import StoredPrefixes, family_tokens, shared_tokens
from jobs.queries import QueuedJob
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.followers import Family, Reader, Reuse
from jobs.scheduling.prefix_replay import PrefixReplay


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
    readers: dict[Family, dict[UUID, Reader]] = field(default_factory=dict)
    reading: dict[Family, UUID] = field(default_factory=dict)
    ranks: dict[Family, int] = field(default_factory=dict)
    ended: dict[Family, UUID] = field(default_factory=dict)
    charged: Counter[UUID] = field(default_factory=Counter)
    _texts: dict[UUID, StoredPrefixes] = field(default_factory=dict)
    _reuses: dict[UUID, Reuse] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sort the running jobs by what they have read."""
        for lease_id, reader in self.load.readers.items():
            if reader.has_read:
                self.readers.setdefault(reader.family, {})[lease_id] = reader
        for reader in sorted(self.load.readers.values(), key=lambda each: each.job_id):
            if reader.family not in self.readers:
                self._note_reading(reader.family, reader.job_id, rank=reader.rank)
        self.ended = {
            family: text_id
            for family, text_id in self.replay.ended().items()
            if family not in self.readers and family not in self.reading
        }

    @property
    def here(self) -> list[Family]:
        """Families of which the engine has a prompt; first those that are certain to stay."""
        return [*self.readers, *self.ended]

    def note_started(self, job: QueuedJob, *, num_charged: int) -> None:
        """Note that this job starts: unless its document is here for certain, it reads it."""
        self.charged[job.tenant_id] += num_charged
        family = family_of(job)
        if family is not None and family not in self.readers:
            self._note_reading(family, job.id, rank=job.rank)
            self.ended.pop(family, None)
            self._reuses.clear()

    def know(self, jobs: Iterable[QueuedJob]) -> None:
        """Read what is needed to compare these jobs with what is here.

        Their accounts have what was charged before.
        """
        self._reuses.clear()
        self.charged.clear()
        mine = [job for job in jobs if (family := family_of(job)) in self.readers or family in self.ended]
        if not mine:
            return
        families = {family_of(job) for job in mine}
        texts = {job.text_id for job in mine}
        texts |= {text_id for family, text_id in self.ended.items() if family in families}
        for family, found in self.readers.items():
            if family in families:
                texts |= {reader.text_id for reader in found.values()}
        self._texts = self.replay.prefixes(self.session, texts)

    def concerns(self, job: QueuedJob) -> bool:
        """Return True if the engine has, or just reads, what this job may begin with."""
        family = family_of(job)
        return family in self.readers or family in self.reading or family in self.ended

    def is_waiting(self, job: QueuedJob) -> bool:
        """Return True if an older job, or one of a higher rank, is just reading what this one begins with."""
        family = family_of(job)
        if family is None or (reader := self.reading.get(family)) is None:
            return False
        return reader < job.id or self.ranks[family] > job.rank

    def reads_twice(self, job: QueuedJob) -> bool:
        """Return True if the job would read what a running one has read or is reading, and share no block."""
        family = family_of(job)
        return family in self.reading or (family in self.readers and not self.reuse(job).blocks)

    def reuse(self, job: QueuedJob) -> Reuse:
        """Find what of this job's prompt is here; at least one token must be computed."""
        if job.id not in self._reuses:
            self._reuses[job.id] = self._reuse(job)
        return self._reuses[job.id]

    def _note_reading(self, family: Family, job_id: UUID, *, rank: int) -> None:
        self.reading.setdefault(family, job_id)
        self.ranks[family] = max(rank, self.ranks.get(family, rank))

    def _reuse(self, job: QueuedJob) -> Reuse:
        family = family_of(job)
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
            return min(family_tokens(job.prompt_tokens), most)
        return min(most, *(shared_tokens(mine, each) for each in others if each is not None))


def family_of(job: QueuedJob) -> Family | None:
    """Return the family of a queued job; None if it has none."""
    return None if job.family is None else Family(job.tenant_id, job.family)


def elsewhere(session: Session, engine_name: str, model: str) -> set[Family]:
    """Find the families of which another engine of this model, no smaller one, runs a job.

    One that starts no more jobs keeps none of them from others.
    """
    given = {"engine_name": engine_name, "model": model}
    return {Family(*row) for row in direct.fetch(session, _ELSEWHERE, given)}


_ELSEWHERE: Final = (
    text("""
    SELECT DISTINCT jobs.tenant_id, jobs.family
    FROM engines JOIN engines AS mine ON mine.name = :engine_name
        AND engines.max_input_len >= mine.max_input_len AND engines.max_seq_len >= mine.max_seq_len
        AND (engines.max_blocks - engines.blocks_per_sequence) * engines.tokens_per_block
            >= (mine.max_blocks - mine.blocks_per_sequence) * mine.tokens_per_block
    JOIN reservations ON reservations.engine_name = engines.name
    JOIN jobs ON jobs.id = reservations.job_id AND jobs.lease_id = reservations.lease_id
    WHERE engines.model = :model AND engines.name <> :engine_name AND engines.paused_reason IS NULL
        AND engines.halt IS NULL AND reservations.state = 'held' AND jobs.family IS NOT NULL
    """)
    .bindparams(bindparam("engine_name", type_=Text()), bindparam("model", type_=Text()))
    .columns(tenant_id=Uuid, family=LargeBinary)
    .execution_options(**PREPARED)
)
