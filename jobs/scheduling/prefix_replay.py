"""What an engine still has of ended jobs' prompts: its cache, replayed from what ran there.

Engines keep the blocks of ended requests as free ones, and drop the least recently used when room is needed.
A worker that starts anew knows nothing of them, which costs no more than reading a document once again.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Final
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.models import PromptText
from jobs.scheduling.followers import Family, Reader
from jobs.scheduling.packing import Running

_MAX_TEXTS: Final = 4096  # of some 300 bytes each
_MAX_POSTPONED: Final = 4096


class PrefixReplay:
    """What one engine still has of ended jobs, as far as its worker saw them. Several threads use it.

    Attributes:
        is_credited: the engine starts a request without room for blocks that it shares with a running one.
    """

    def __init__(self, *, is_credited: bool = False) -> None:
        self.is_credited = is_credited
        self._lock = threading.Lock()
        self._running: dict[UUID, tuple[Reader | None, int]] = {}
        # Least recently used first; of jobs without a family only the room that they took counts.
        self._ended: OrderedDict[Family | UUID, tuple[UUID | None, int]] = OrderedDict()
        self._postponed: OrderedDict[UUID, float] = OrderedDict()
        self._texts: dict[UUID, bytes] = {}

    def observe(
        self,
        running: Mapping[UUID, Running],
        readers: Mapping[UUID, Reader],
        *,
        max_blocks: int,
        completed: Collection[UUID] = (),
    ) -> None:
        """Note what runs on the engine now, and so what ended since the last time.

        Args:
            running: reservations by lease, read under the engine's lock.
            readers: those of jobs that have a family.
            max_blocks: of the engine.
            completed: leases of jobs that ended with a whole answer.
        """
        with self._lock:
            for lease_id, (reader, blocks) in self._running.items():
                if lease_id not in running:
                    has_read = reader is not None and (reader.has_read or lease_id in completed)
                    self._leave(lease_id, reader if has_read else None, blocks)
            self._running = {each: (readers.get(each), now.blocks) for each, now in running.items()}
            for each in readers.values():
                self._ended.pop(each.family, None)
            self._drop(max_blocks - sum(each.blocks for each in running.values()))

    def start(self, lease_id: UUID, reader: Reader | None, blocks: int) -> None:
        """Note that a job starts; it may end before anything is observed again."""
        with self._lock:
            self._running[lease_id] = (reader, blocks)

    def ended(self) -> dict[Family, UUID]:
        """Return the families of which the engine probably has a prompt that no job refers to, with its text.

        The most recently used come first.
        """
        with self._lock:
            found = reversed(self._ended.items())
            return {family: each for family, (each, _) in found if isinstance(family, Family) and each}

    def postpone(self, job_id: UUID, steps: float) -> None:
        """Note that a follower overtook this job, for so many steps."""
        with self._lock:
            self._postponed[job_id] = self._postponed.pop(job_id, 0.0) + steps
            if len(self._postponed) > _MAX_POSTPONED:
                self._postponed.popitem(last=False)

    def postponed(self) -> Mapping[UUID, float]:
        """Return for how many steps followers overtook each job."""
        with self._lock:
            return dict(self._postponed)

    def prefixes(self, session: Session, text_ids: Collection[UUID]) -> dict[UUID, bytes]:
        """Read the stored prefixes of these texts, each once; leaves out those that have none."""
        with self._lock:
            missing = [each for each in text_ids if each not in self._texts]
        if missing:
            query = select(PromptText.id, PromptText.prefixes).where(PromptText.id.in_(missing))
            new = {each: prefixes for each, prefixes in session.execute(query) if prefixes}
            with self._lock:
                if len(self._texts) + len(new) > _MAX_TEXTS:
                    self._texts.clear()
                self._texts |= new
                return {each: self._texts[each] for each in text_ids if each in self._texts}
        with self._lock:
            return {each: self._texts[each] for each in text_ids if each in self._texts}

    def _leave(self, lease_id: UUID, reader: Reader | None, blocks: int) -> None:
        if reader is None:
            self._ended[lease_id] = (None, blocks)
            return
        self._ended.pop(reader.family, None)
        self._ended[reader.family] = (reader.text_id, reader.blocks)

    def _drop(self, room: int) -> None:
        """Drop what was used least recently until the rest has room."""
        total = sum(blocks for _, blocks in self._ended.values())
        while self._ended and total > room:
            _, (_, blocks) = self._ended.popitem(last=False)
            total -= blocks
