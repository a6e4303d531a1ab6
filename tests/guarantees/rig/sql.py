"""All SQL of the suite: the tables and columns that it relies on are named here and nowhere else."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg

TERMINAL: Final = ("completed", "failed", "cancelled", "expired")


@dataclass(frozen=True)
class Reserved:
    """What the reservations of an engine add up to."""

    requests: int
    blocks: int


class Rows:
    """Reads the rows of one database; changes a few as time or a fault would."""

    def __init__(self, url: str) -> None:
        self.url = url

    def fetch(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Execute a statement on a connection of its own."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(query.encode(), values)
            return list(found) if found.description else []

    def num_results(self, job_id: str) -> int:
        """Count the results of a job."""
        return int(self.fetch("SELECT count(*) FROM results WHERE job_id = %s", uuid_of(job_id))[0][0])

    def events(self, job_id: str) -> list[tuple[str, str]]:
        """Read the events of a job: their public ids and types."""
        query = "SELECT id, type FROM webhook_events WHERE job_id = %s ORDER BY id"
        return [(f"evt_{event_id.hex}", kind) for event_id, kind in self.fetch(query, uuid_of(job_id))]

    def transactions(self) -> frozenset[tuple[Any, ...]]:
        """List the open transactions of inference workers, each with its beginning."""
        query = (
            "SELECT pid, xact_start FROM pg_stat_activity WHERE datname = current_database()"
            " AND xact_start IS NOT NULL"
            " AND application_name IN ('longbatch-inference', 'longbatch-leases', 'longbatch-ticks')"
        )
        return frozenset(self.fetch(query))

    def reserved(self, engine: str) -> Reserved:
        """Sum up an engine's reservations, draining ones too."""
        query = "SELECT count(*), coalesce(sum(blocks), 0) FROM reservations WHERE engine_name = %s"
        ((requests, blocks),) = self.fetch(query, engine)
        return Reserved(int(requests), int(blocks))

    def lease_of(self, job_id: str) -> UUID | None:
        """Read the lease under which a job runs."""
        ((lease,),) = self.fetch("SELECT lease_id FROM jobs WHERE id = %s", uuid_of(job_id))
        return lease if isinstance(lease, UUID) else None

    def lease_ends(self, job_id: str) -> datetime:
        """Read until when the lease of a running job holds."""
        ((end,),) = self.fetch("SELECT lease_expires_at FROM jobs WHERE id = %s", uuid_of(job_id))
        assert isinstance(end, datetime)
        return end

    def now(self) -> datetime:
        """Read the database's clock, by which leases go."""
        ((now,),) = self.fetch("SELECT clock_timestamp()")
        assert isinstance(now, datetime)
        return now

    def stop_reason_of(self, job_id: str) -> str | None:
        """Read why a running job is to stop."""
        ((reason,),) = self.fetch("SELECT stop_reason FROM jobs WHERE id = %s", uuid_of(job_id))
        return reason if isinstance(reason, str) else None

    def forget_ticks(self, engine: str) -> None:
        """Forget when workers last looked for jobs for this engine."""
        self.fetch("UPDATE engines SET ticked_at = NULL WHERE name = %s", engine)

    def has_ticked(self, engine: str) -> bool:
        """Return True if a worker has looked for jobs since `forget_ticks`."""
        query = "SELECT 1 FROM engines WHERE name = %s AND ticked_at IS NOT NULL"
        return bool(self.fetch(query, engine))

    def let_window_end(self, job_id: str) -> None:
        """End the completion window of a job now, as if an hour had passed."""
        query = "UPDATE jobs SET expires_at = clock_timestamp() - interval '1 s' WHERE id = %s"
        self.fetch(query, uuid_of(job_id))

    def unfinished(self) -> list[str]:
        """List the jobs that have not ended."""
        query = "SELECT id FROM jobs WHERE state <> ALL (%s)"
        return [f"job_{each.hex}" for (each,) in self.fetch(query, list(TERMINAL))]

    def plant_refusal(self, custom_id: str, *, when: str) -> None:
        """Make the database refuse one row of jobs at this moment: at its insertion, start or end."""
        condition = {
            "start": "NEW.state = 'running' AND OLD.state = 'queued'",
            "end": "NEW.state = 'completed'",
        }[when]
        self.fetch(
            "CREATE OR REPLACE FUNCTION refuse_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'refused' USING ERRCODE = 'check_violation'; END $$"
        )
        self.fetch(
            "CREATE TRIGGER refuse_row BEFORE UPDATE ON jobs FOR EACH ROW"
            f" WHEN ({condition} AND NEW.custom_id = '{custom_id}') EXECUTE FUNCTION refuse_row()"
        )

    def lift_refusal(self) -> None:
        """Accept every row again."""
        self.fetch("DROP FUNCTION IF EXISTS refuse_row CASCADE")

    def end_sessions(self) -> None:
        """End every other session of the database, as a failover does."""
        self.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )


def uuid_of(job_id: str) -> UUID:
    """Return the key of a job's row."""
    return UUID(job_id.removeprefix("job_"))
