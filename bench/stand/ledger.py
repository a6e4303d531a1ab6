"""The product's database during a run, read independently, so that no contender reports on itself."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg

from bench.stand.documents import Prompt
from jobs.ids import parse_job_id

# Everything but tenants, engines and texts, which are counted once and are the same in each run.
_EMPTY = "TRUNCATE jobs, results, checkpoints, reservations, accounts, account_shards, webhook_events CASCADE"

_MOST_TRIES = 5


class Ledger:
    """The tables of one stand."""

    def __init__(self, url: str) -> None:
        self.database = psycopg.connect(url, autocommit=True)

    def close(self) -> None:
        """Close the connection."""
        self.database.close()

    def clear(self) -> None:
        """Remove all jobs."""
        for _ in range(_MOST_TRIES - 1):
            # A transaction that reads two of the tables meanwhile may hold one and want the other.
            with suppress(psycopg.errors.DeadlockDetected):
                self.database.execute(_EMPTY)
                return
        self.database.execute(_EMPTY)

    def count(self, table: str, condition: str) -> int:
        """Count the rows of a table that meet the condition."""
        row = self.database.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone()  # noqa: S608  # ours
        return int(row[0]) if row else 0

    def unfinished(self) -> int:
        """Count jobs that have not ended; each state's count reads a partial index."""
        return sum(self.count("jobs", f"state = '{state}'") for state in ("preparing", "queued", "running"))

    def last_end(self, ids: Sequence[str]) -> float:
        """Return when the last of these jobs was recorded as ended, in monotonic seconds."""
        return max(self._ages(ids, "finalized_at"))

    def starts(self, ids: Sequence[str]) -> list[float]:
        """Return when each of these jobs was first claimed, in monotonic seconds."""
        return self._ages(ids, "started_at")

    def first_tokens(self, ids: Sequence[str]) -> list[float]:
        """Return when each of these jobs had its first token, in monotonic seconds."""
        return self._ages(ids, "first_token_at")

    def _ages(self, ids: Sequence[str], column: str) -> list[float]:
        ages = self._by_id(ids, f"extract(epoch FROM clock_timestamp() - {column})::float8")
        now = time.monotonic()
        return [now - ages[parse_job_id(each)] for each in ids]

    def outputs(self, ids: Sequence[str]) -> list[int]:
        """Return the output tokens of each job; 0 unless it completed with its one result."""
        found = self._by_id(
            ids,
            "CASE WHEN state = 'completed' AND EXISTS (SELECT FROM results WHERE job_id = jobs.id)"
            " THEN completion_tokens ELSE 0 END",
        )
        return [found[parse_job_id(each)] for each in ids]

    def _by_id(self, ids: Sequence[str], expression: str) -> dict[UUID, Any]:
        query = f"SELECT id, {expression} FROM jobs WHERE id = ANY(%s)"  # noqa: S608  # ours
        return dict(self.database.execute(query, [[parse_job_id(each) for each in ids]]).fetchall())

    def assign(self, ids: Sequence[str], prompts: Sequence[Prompt], weights: Mapping[str, float]) -> None:
        """Give each queued job to its spec's tenant, and each tenant its weight."""
        for name, weight in weights.items():
            self.database.execute(
                "INSERT INTO tenants (id, name, weight) VALUES (gen_random_uuid(), %s, %s)"
                " ON CONFLICT (name) DO UPDATE SET weight = excluded.weight",
                [name, weight],
            )
            own = [parse_job_id(each) for each, p in zip(ids, prompts, strict=True) if p.spec.tenant == name]
            self.database.execute(
                "UPDATE jobs SET tenant_id = (SELECT id FROM tenants WHERE name = %s) WHERE id = ANY(%s)",
                [name, own],
            )

    def served(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Count tokens served to each tenant until one has no job left to start.

        A job that was running then counts by the share of its time that had passed.
        """
        rows = self.database.execute(
            "SELECT t.name, extract(epoch FROM j.started_at)::float8,"
            " extract(epoch FROM j.finalized_at)::float8, j.prompt_tokens + j.completion_tokens"
            " FROM jobs j JOIN tenants t ON t.id = j.tenant_id WHERE t.name = ANY(%s)",
            [list(weights)],
        ).fetchall()
        until = min(max(start for tenant, start, _, _ in rows if tenant == name) for name in weights)
        found = dict.fromkeys(weights, 0.0)
        for tenant, start, end, tokens in rows:
            found[tenant] += tokens * min(1.0, max(0.0, (until - start) / (end - start)))
        return found
