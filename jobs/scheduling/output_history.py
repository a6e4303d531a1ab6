"""What peers of a job generated: the newest outputs of its tenant's task by the same adapter, or by none."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.database import statements
from jobs.database.statements import Statement
from jobs.scheduling.prediction import Peers

# Enough for a 95th percentile, few enough to read at claims.
_RECENT: Final = 200
_MAX_KEPT: Final = 1024

# So many are looked at: where few are of the adapter, older ones tell little.
_LOOKED_AT: Final = 2000

Group = tuple[UUID, str, str | None]  # a tenant, a task of its jobs, and the adapter that they ask for
# The literal state lets the planner use the partial index. A row for each group: rows cost the driver most.
_NEWEST: Final = Statement(f"""
    SELECT wanted.tenant_id, wanted.task, wanted.adapter, newest.prompts, newest.outputs
    FROM unnest(%(tenants)s::uuid[], %(tasks)s::text[], %(adapters)s::text[])
        AS wanted(tenant_id, task, adapter), LATERAL (
        SELECT array_agg(coalesce(prompt_tokens, 0)) AS prompts, array_agg(completion_tokens) AS outputs
        FROM (
            SELECT prompt_tokens, completion_tokens FROM (
                SELECT prompt_tokens, completion_tokens, jobs.adapter FROM jobs
                WHERE jobs.tenant_id = wanted.tenant_id AND jobs.task = wanted.task AND state = 'completed'
                ORDER BY finalized_at DESC LIMIT {_LOOKED_AT}
            ) AS looked_at
            WHERE looked_at.adapter IS NOT DISTINCT FROM wanted.adapter LIMIT {_RECENT}
        ) AS recent
    ) AS newest
    """)  # noqa: S608  # built from constants


class History:
    """Remembers for a while what it has read: a prediction may be seconds old, a claim must be quick.

    Several threads use it; two may read the same rows at once, which is harmless.
    """

    def __init__(self, keep: timedelta = timedelta(0)) -> None:
        self._keep_seconds = keep.total_seconds()
        self._known: dict[Group, tuple[float, Peers]] = {}

    def peers(self, session: Session, groups: Collection[Group]) -> dict[Group, Peers]:
        """Read what the newest completed jobs of each group generated, in one statement."""
        found = {each: self._known[each] for each in groups if each in self._known}
        young = {
            each: peers
            for each, (read_at, peers) in found.items()
            if time.monotonic() - read_at < self._keep_seconds
        }
        missing = [each for each in groups if each not in young]
        return young | self._read(session, missing) if missing else young

    def _read(self, session: Session, groups: Sequence[Group]) -> dict[Group, Peers]:
        tenants, tasks, adapters = ([each[place] for each in groups] for place in range(3))
        given = {"tenants": tenants, "tasks": tasks, "adapters": adapters}
        found = {
            (tenant_id, task, adapter): Peers.of(zip(prompts or (), outputs or (), strict=True))
            for tenant_id, task, adapter, prompts, outputs in statements.fetch(session, _NEWEST, given)
        }
        if len(self._known) + len(found) > _MAX_KEPT:
            self._known.clear()
        now = time.monotonic()
        self._known |= {each: (now, peers) for each, peers in found.items()}
        return found


@dataclass(slots=True)
class PeersOnce:
    """What peers generated, read once within a transaction, so that all its predictions agree."""

    session: Session
    history: History
    _read: dict[Group, Peers] = field(default_factory=dict)

    def read(self, groups: Collection[Group]) -> None:
        """Read the outputs of these groups that are not read yet."""
        missing = [each for each in groups if each not in self._read]
        if missing:
            self._read |= self.history.peers(self.session, missing)

    def of(self, group: Group) -> Peers:
        """Return the outputs of this group; read them if that was not done."""
        self.read([group])
        return self._read[group]
