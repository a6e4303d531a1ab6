"""Starting queued jobs in sets: each gets a lease and its reservation, and its tenant is charged."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, NamedTuple
from uuid import UUID

from sqlalchemy import (
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from jobs import job_rows
from jobs.database import statements
from jobs.database.statements import Statement
from jobs.engines import served_tokens
from jobs.models import Job
from jobs.models.tenant import HALTED_TENANTS
from jobs.queries import QueuedJob
from jobs.transitions import Lease
from jobs.webhooks import events, outbox

_LEFT_OUT: Final = "longbatch.left_out"
# Classes of SQLSTATE that blame no row: connection lost, bad state of the transaction, deadlock, out of
# resources, locked, cancelled or shutting down, failing disks.
_BLAMELESS: Final = ("08", "25", "40", "53", "55", "57", "58")


class StartRefusedError(Exception):
    """The database refuses to start a set of jobs, one of them at least. The transaction is lost.

    Attributes:
        claims: the set.
    """

    def __init__(self, claims: Sequence["Claim"]) -> None:
        """Args: claims: the set."""
        super().__init__(len(claims))
        self.claims = claims


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that starts on an engine: what was chosen for it, and what its run then holds.

    Attributes:
        lease: the fence for every later write.
        job: its row when the queue was read. It starts only if its size has not changed since.
        blocks: KV blocks reserved for it.
        output_tokens: output that the blocks cover besides the prompt, including that of earlier runs.
        steps: engine iterations from its start to its expected end.
        slot_wait: those until it starts: it is sent to wait inside the engine until another one ends.
        waited: from its submission to its first start, once that is claimed.
        overtakes: a better ranked job that its growth must not postpone.
        alone: nothing else may start beside it.
        charge: tokens that its tenant pays now.
        charged_prompt: of these, those of its prompt; None: an earlier run has paid for it.
        shared_blocks: of the blocks, those that count once with others of its family.
        anchor: the lease of a running job that has them too; None: it shares none.
        family: with which it shares what it reads; None: that counts for it alone, though others may have it.
        postponed_id: the job of its tenant that it postpones as a follower; None: none.
        postponed_steps: for how many steps followers have postponed that one in all.
        reused_tokens: of its prompt, that the engine is expected to have.
        likely_tokens: of the output, those that half of its peers needed.
        is_awaited: others may begin like it, and wait until it is known to have read that. Once the reader
            has ended, they wait for a follower.
    """

    lease: Lease
    job: QueuedJob
    blocks: int
    output_tokens: int
    steps: int = 0
    slot_wait: int = 0
    waited: timedelta = timedelta(0)
    overtakes: UUID | None = None
    alone: bool = False
    charge: int = 0
    charged_prompt: int | None = None
    shared_blocks: int = 0
    anchor: UUID | None = None
    family: bytes | None = None
    postponed_id: UUID | None = None
    postponed_steps: float | None = None
    reused_tokens: int = 0
    likely_tokens: int = 0
    is_awaited: bool = False

    @property
    def is_first(self) -> bool:
        """True if no engine had the job before."""
        return self.job.started_at is None


class Claimant(NamedTuple):
    """Who runs jobs.

    Attributes:
        name: host and process id, kept with every run for people who ask later; None: not known.
        worker_id: of its row in `workers`, by which its leases end with its process; None: it has none.
    """

    name: str | None = None
    worker_id: UUID | None = None


UNKNOWN: Final = Claimant()


def start_all(
    session: Session,
    claims: Sequence[Claim],
    *,
    lease_duration: timedelta,
    engine_name: str,
    claimant: Claimant = UNKNOWN,
) -> list[Claim]:
    """Start queued jobs; see `lifecycle.claim`.

    Raises:
        StartRefusedError: the database refuses; `find_refused` tells which.
    """
    excluded: Collection[UUID] = session.info.get(_LEFT_OUT, ())
    claims = [each for each in claims if each.lease.job_id not in excluded]
    if not claims:
        return []
    try:
        return _start_all(
            session, claims, lease_duration=lease_duration, engine_name=engine_name, claimant=claimant
        )
    except DBAPIError as error:
        if error.connection_invalidated or (getattr(error.orig, "sqlstate", None) or "08").startswith(
            _BLAMELESS
        ):
            raise
        raise StartRefusedError(claims) from error


def leave_out(session: Session, job_ids: Collection[UUID]) -> None:
    """Start none of these jobs in this session, as if another engine were always faster."""
    session.info[_LEFT_OUT] = frozenset(job_ids)


def find_refused(
    session: Session, claims: Sequence[Claim], *, lease_duration: timedelta, engine_name: str
) -> list[tuple[Claim, BaseException]]:
    """Find those of these claims that the database refuses, and why; start none.

    Halves the set until each of them is alone. The caller holds the engine's row.
    """
    attempt = session.begin_nested()
    try:
        start_all(session, claims, lease_duration=lease_duration, engine_name=engine_name)
    except StartRefusedError as error:
        attempt.rollback()
        if len(claims) == 1:
            return [(claims[0], error.__cause__ or error)]
        middle = len(claims) // 2
        halves = (claims[:middle], claims[middle:])
        return [
            found
            for half in halves
            for found in find_refused(session, half, lease_duration=lease_duration, engine_name=engine_name)
        ]
    attempt.rollback()
    return []


def _start_all(
    session: Session,
    claims: Sequence[Claim],
    *,
    lease_duration: timedelta,
    engine_name: str,
    claimant: Claimant,
) -> list[Claim]:
    given = {
        "lease_ids": [each.lease.lease_id for each in claims],
        **{f"expected_{name}": [getattr(each.job, name) for each in claims] for name in _EXPECTED},
        **{name: [getattr(each, name) for each in claims] for name in _RESERVED},
        "lease_duration": lease_duration,
        "engine_name": engine_name,
        "worker": claimant.name,
        "worker_id": claimant.worker_id,
    }
    rows = statements.fetch(session, START, given)
    job_rows.expire_loaded(session, [job_id for job_id, *_ in rows])
    started = {job_id: (waited, is_active) for job_id, waited, _, is_active in rows}
    running = [replace(each, waited=started[each.job.id][0]) for each in claims if each.job.id in started]
    _activate(session, [each for each in running if not started[each.job.id][1]])
    _tell(session, [job_id for job_id, _, is_wanted, _ in rows if is_wanted])
    return running


def _activate(session: Session, newcomers: Sequence[Claim]) -> None:
    """Activate the accounts that another transaction held while the queue was ranked."""
    charges: Counter[tuple[UUID, str]] = Counter()
    for each in newcomers:
        charges[each.job.tenant_id, each.job.model] += each.charge
    for (tenant_id, model), num_tokens in charges.items():
        served_tokens.activate_charged(session, tenant_id, model, num_tokens=num_tokens)


def _tell(session: Session, wanted: Sequence[UUID]) -> None:
    """Publish the starts of these jobs; hardly any job has a subscriber to its."""
    if wanted:
        jobs = session.scalars(select(Job).where(Job.id.in_(wanted))).all()
        outbox.publish(session, [events.job_started(job) for job in jobs])


# What a claim checks of a job, by its id: what decides the size of its reservation, and counts its runs.
_EXPECTED: Final = {
    "id": "uuid",
    "prompt_tokens": "integer",
    "completion_tokens": "integer",
    "num_yields": "integer",
    "num_rescues": "integer",
    "started_at": "timestamptz",
    "attempt": "integer",
}
_RESERVED: Final = {
    "blocks": "integer",
    "output_tokens": "integer",
    "overtakes": "uuid",
    "alone": "boolean",
    "charge": "float8",
    "charged_prompt": "integer",
    "shared_blocks": "integer",
    "anchor": "uuid",
    "family": "bytea",
    "postponed_id": "uuid",
    "postponed_steps": "float8",
}
_SAME: Final = " AND ".join(f"jobs.{name} IS NOT DISTINCT FROM given.{name}" for name in list(_EXPECTED)[1:])
_LAST: Final = "(array_agg(given.{0} ORDER BY given.place DESC) FILTER (WHERE given.{0} IS NOT NULL))[1]"
START: Final = Statement(f"""
    WITH given AS (
        SELECT * FROM unnest(
            %(lease_ids)s::uuid[],
            {", ".join(f"%(expected_{name})s::{kind}[]" for name, kind in _EXPECTED.items())},
            {", ".join(f"%({name})s::{kind}[]" for name, kind in _RESERVED.items())}
        ) WITH ORDINALITY AS given(lease_id, {", ".join([*_EXPECTED, *_RESERVED])}, place)
    ), free AS (
        SELECT jobs.id, given.lease_id, given.family FROM given JOIN jobs ON jobs.id = given.id
        WHERE jobs.id = ANY(%(expected_id)s::uuid[]) AND {job_rows.may("claim")} AND {_SAME}
            AND (jobs.run_after IS NULL OR jobs.run_after <= clock_timestamp())
            AND jobs.tenant_id <> ALL ({HALTED_TENANTS})
        FOR UPDATE OF jobs SKIP LOCKED
    ), started AS (
        UPDATE jobs SET {job_rows.moves("claim")}, lease_id = free.lease_id,
            lease_expires_at = clock_timestamp() + %(lease_duration)s::interval,
            engine_name = %(engine_name)s::text,
            started_at = coalesce(jobs.started_at, clock_timestamp()), run_after = NULL,
            family = free.family
        FROM free WHERE jobs.id = free.id AND jobs.id = ANY(%(expected_id)s::uuid[])
        RETURNING jobs.id, jobs.tenant_id, jobs.model, {events.IS_START_WANTED} AS is_start_wanted,
            jobs.started_at - jobs.created_at AS waited
    ), reserved AS (
        INSERT INTO reservations
            (lease_id, engine_name, job_id, blocks, shared_blocks, output_tokens, output_before,
                charged_prompt, overtakes, alone, worker, worker_id)
        SELECT given.lease_id, %(engine_name)s::text, given.id, given.blocks, given.shared_blocks,
            given.output_tokens, given.completion_tokens, given.charged_prompt, given.overtakes, given.alone,
            %(worker)s::text, %(worker_id)s::uuid
        FROM started JOIN given USING (id)
    ), anchors AS (
        SELECT given.anchor, max(given.shared_blocks) AS shared FROM started JOIN given USING (id)
        WHERE given.anchor IS NOT NULL GROUP BY 1
    ), free_anchors AS (
        -- One that another transaction is just closing counts whole until it goes.
        SELECT reservations.lease_id, anchors.shared
        FROM anchors JOIN reservations ON reservations.lease_id = anchors.anchor
        WHERE reservations.engine_name = %(engine_name)s::text
        FOR UPDATE OF reservations SKIP LOCKED
    ), anchored AS (
        UPDATE reservations
        SET shared_blocks = least(blocks, greatest(reservations.shared_blocks, free_anchors.shared))
        FROM free_anchors WHERE reservations.lease_id = free_anchors.lease_id
    ), charged AS (
        INSERT INTO account_shards AS shard
            (tenant_id, model, engine_name, served, overtaken_id, overtaken_steps)
        SELECT started.tenant_id, started.model, %(engine_name)s::text, sum(given.charge / tenants.weight),
            {_LAST.format("postponed_id")}, {_LAST.format("postponed_steps")}
        FROM started JOIN given USING (id) JOIN tenants ON tenants.id = started.tenant_id
        GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (tenant_id, model, engine_name) DO UPDATE SET served = shard.served + excluded.served,
            overtaken_id = coalesce(excluded.overtaken_id, shard.overtaken_id),
            overtaken_steps = coalesce(excluded.overtaken_steps, shard.overtaken_steps)
    )
    SELECT started.id, started.waited, started.is_start_wanted, EXISTS (
        SELECT FROM accounts
        WHERE accounts.tenant_id = started.tenant_id AND accounts.model = started.model AND accounts.is_active
    ) AS is_active FROM started
    """)  # noqa: S608  # built from constants
