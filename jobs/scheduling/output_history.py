"""What peers of a job generated: the newest outputs of its tenant's task."""

import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import literal_column, select
from sqlalchemy.orm import Session

from jobs.models import Job
from jobs.scheduling.prediction import Peers

# Enough for a 95th percentile, few enough to read at claims.
_RECENT: Final = 200
_MAX_KEPT: Final = 1024


class History:
    """Remembers for a while what it has read: a prediction may be seconds old, a claim must be quick.

    Several threads use it; two may read the same rows at once, which is harmless.
    """

    def __init__(self, keep: timedelta = timedelta(0)) -> None:
        self._keep_seconds = keep.total_seconds()
        self._known: dict[tuple[UUID, str], tuple[float, Peers]] = {}

    def peers(self, session: Session, tenant_id: UUID, task: str) -> Peers:
        """Read what the newest completed jobs of this tenant and task generated."""
        read_at, peers = self._known.get((tenant_id, task), (float("-inf"), Peers.of(())))
        if time.monotonic() - read_at < self._keep_seconds:
            return peers
        newest = (
            select(Job.prompt_tokens, Job.completion_tokens)
            .where(Job.tenant_id == tenant_id, Job.task == task, Job.state == literal_column("'completed'"))
            .order_by(Job.finalized_at.desc())
            .limit(_RECENT)
        )
        peers = Peers.of((prompt or 0, output) for prompt, output in session.execute(newest))
        if len(self._known) >= _MAX_KEPT:
            self._known.clear()
        self._known[tenant_id, task] = (time.monotonic(), peers)
        return peers


@dataclass(slots=True)
class PeersOnce:
    """What peers generated, read once within a transaction, so that all its predictions agree."""

    session: Session
    history: History
    _read: dict[tuple[UUID, str], Peers] = field(default_factory=dict)

    def of(self, tenant_id: UUID, task: str) -> Peers:
        """Read the outputs of this tenant and task, at most once."""
        key = (tenant_id, task)
        if key not in self._read:
            self._read[key] = self.history.peers(self.session, tenant_id, task)
        return self._read[key]
