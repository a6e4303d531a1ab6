"""What an engine still has of ended jobs' prompts: its cache, replayed from what ran there.

Engines keep the full blocks of ended requests as free ones, prompts and outputs alike, and drop the least
recently used when room is needed. What they report as reused corrects the replay: a job that finds less than
expected shows that all that was used before it has been dropped, and how much less the cache holds than was
thought. A worker that starts anew knows nothing, which costs no more than reading a document once again.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from itertools import count
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.engines.capacity import Capacity
from jobs.models import PromptText
from jobs.prompts.prefixes import StoredPrefixes
from jobs.scheduling.packing import Family, Reserved

_MAX_TEXTS: Final = 4096  # of 1.5 KB each at most
_MAX_POSTPONED: Final = 4096


class Answered(NamedTuple):
    """How a job's run ended: tokens generated in all, and tokens of its prompt that the engine had.

    The latter is None if the engine did not tell.
    """

    generated_tokens: int
    cached_tokens: int | None = None


class Left(NamedTuple):
    """What an ended job left: its prompt and that one's length, its blocks, and when, as a growing number."""

    text_id: UUID
    prompt_tokens: int
    blocks: int
    at: int


class _Expected(NamedTuple):
    """What a job was expected to find: tokens of what was left at that time, or nothing.

    If it is there, the cache holds `depth` blocks: it, all that was used later, and what runs.
    """

    tokens: int = 0
    left_at: int = 0
    depth: int = 0


class _Postponing(NamedTuple):
    """The job that a follower postpones, and the output of the follower by which that was reckoned."""

    job_id: UUID
    output_tokens: int


class PrefixReplay:
    """What one engine still has of ended jobs, as far as its worker saw them, and whom followers postponed.

    Used by one thread at a time.

    Attributes:
        is_credited: the engine starts a request without room for blocks that it shares with a running one.
    """

    def __init__(self, *, is_credited: bool = False) -> None:
        self.is_credited = is_credited
        self._reserved: dict[UUID, Reserved] = {}
        self._expected: dict[UUID, _Expected] = {}
        # Least recently used first; of jobs that nobody follows only the room that they took counts.
        self._left: OrderedDict[Family | UUID, Left] = OrderedDict()
        self._times = count(1)
        self._unseen = 0  # blocks that the cache holds less than the replay would give it
        self._postponed: OrderedDict[UUID, float] = OrderedDict()
        self._postponing: dict[UUID, _Postponing] = {}  # by lease
        self._texts: dict[UUID, StoredPrefixes] = {}

    def observe(
        self, reserved: Mapping[UUID, Reserved], *, capacity: Capacity, answered: Mapping[UUID, Answered]
    ) -> None:
        """Note what runs on the engine now, and so what ended since the last time.

        Args:
            reserved: reservations by lease, read under the engine's lock.
            capacity: of the engine.
            answered: by lease, jobs that ended with a whole answer.
        """
        followed = {job.family for job in reserved.values() if job.family is not None}
        for lease_id, job in self._reserved.items():
            if lease_id not in reserved:
                answer = answered.get(lease_id)
                self._learn(lease_id, job, answer, capacity)
                self._correct(lease_id, answer, capacity)
                self._leave(lease_id, job, answer, followed, capacity)
        self._reserved = dict(reserved)
        for family in followed:
            self._left.pop(family, None)
        used = sum(job.blocks for job in reserved.values())
        self._drop(capacity.max_blocks - self._unseen - used)

    def start(
        self,
        lease_id: UUID,
        job: Reserved,
        *,
        reused_tokens: int = 0,
        postpones: UUID | None = None,
        likely_tokens: int = 0,
    ) -> None:
        """Note that a job starts; it may end before anything is observed again.

        Args:
            lease_id: of the job.
            job: it.
            reused_tokens: of its prompt, that the engine is expected to have.
            postpones: the job that it postpones as a follower, as given to `postpone`; None: none.
            likely_tokens: of its output, by which that was reckoned.
        """
        if postpones is not None:
            self._postponing[lease_id] = _Postponing(postpones, likely_tokens)
        left = None if job.family is None else self._left.get(job.family)
        if left is not None and reused_tokens:
            later = sum(each.blocks for each in self._left.values() if each.at >= left.at)
            depth = later + sum(each.blocks for each in self._reserved.values())
            self._expected[lease_id] = _Expected(reused_tokens, left.at, depth)
        elif job.family is not None and not reused_tokens:
            self._expected[lease_id] = _Expected()
        self._reserved[lease_id] = job

    def ended(self) -> dict[Family, Left]:
        """Return the families of which the engine probably has a prompt that no job refers to.

        The most recently used come first.
        """
        return {key: each for key, each in reversed(self._left.items()) if isinstance(key, Family)}

    def postpone(self, job_id: UUID, steps: float) -> float:
        """Add the steps by which a follower postpones this job; return their sum."""
        total = self._postponed.pop(job_id, 0.0) + steps
        self.recall({job_id: total})
        return total

    def recall(self, postponed: Mapping[UUID, float]) -> None:
        """Note for how many steps these jobs were postponed, perhaps before this worker started."""
        for job_id, steps in postponed.items():
            self._postponed.setdefault(job_id, steps)
        while len(self._postponed) > _MAX_POSTPONED:
            self._postponed.popitem(last=False)

    @property
    def postponed(self) -> Mapping[UUID, float]:
        """For how many steps followers postponed each job."""
        return self._postponed

    def prefixes(self, session: Session, text_ids: Collection[UUID]) -> dict[UUID, StoredPrefixes]:
        """Read the stored prefixes of these texts, each once; leaves out those that have none."""
        missing = [each for each in text_ids if each not in self._texts]
        if missing:
            if len(self._texts) + len(missing) > _MAX_TEXTS:
                self._texts = {each: self._texts[each] for each in text_ids if each in self._texts}
            columns = (PromptText.id, PromptText.prefixes, PromptText.num_tokens)
            query = select(*columns).where(PromptText.id.in_(missing))
            self._texts |= {
                each: StoredPrefixes(prefixes, num_tokens)
                for each, prefixes, num_tokens in session.execute(query)
                if prefixes and num_tokens
            }
        return {each: self._texts[each] for each in text_ids if each in self._texts}

    def _learn(self, lease_id: UUID, job: Reserved, answered: Answered | None, capacity: Capacity) -> None:
        """Compare what a job found with what was expected; forget what must have been dropped."""
        expected = self._expected.pop(lease_id, None)
        if expected is None or answered is None or answered.cached_tokens is None or job.family is None:
            return
        found = answered.cached_tokens // capacity.tokens_per_block
        missing = expected.tokens // capacity.tokens_per_block - found
        if not expected.tokens:
            if 2 * found >= job.reserved_blocks:  # it was there, though forgotten
                self._unseen //= 2
        elif missing > 0:
            self._unseen = max(self._unseen, capacity.max_blocks - (expected.depth - missing))
            while self._left and next(iter(self._left.values())).at <= expected.left_at:
                self._left.popitem(last=False)
        else:
            self._unseen -= self._unseen // 16

    def _correct(self, lease_id: UUID, answered: Answered | None, capacity: Capacity) -> None:
        """Correct for how long a follower postponed another job, now that its answer's length is known."""
        postponing = self._postponing.pop(lease_id, None)
        if postponing is None or answered is None or postponing.job_id not in self._postponed:
            return
        more = answered.generated_tokens - postponing.output_tokens
        steps = self._postponed[postponing.job_id] + more / capacity.max_batch_size
        self._postponed[postponing.job_id] = max(0.0, steps)

    def _leave(
        self,
        lease_id: UUID,
        job: Reserved,
        answered: Answered | None,
        followed: Collection[Family],
        capacity: Capacity,
    ) -> None:
        """Note what a job leaves in the cache: what it used of its reservation.

        The document that it shares with running jobs stays theirs.
        """
        unused = 0 if answered is None else max(0, job.output_tokens - answered.generated_tokens)
        unused //= capacity.tokens_per_block
        key: Family | UUID
        if job.family is None or not (job.has_read or answered) or job.family in followed:
            key, blocks = lease_id, max(0, job.blocks - unused)
        else:
            key, blocks = job.family, job.reserved_blocks - unused
        self._left.pop(key, None)
        self._left[key] = Left(job.text_id, job.prompt_tokens, blocks, next(self._times))

    def _drop(self, room: int) -> None:
        """Drop what was used least recently until the rest has room."""
        total = sum(each.blocks for each in self._left.values())
        while self._left and total > room:
            _, dropped = self._left.popitem(last=False)
            total -= dropped.blocks
