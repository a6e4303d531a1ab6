"""Completing jobs in sets: the end, result, usage and event of each, and the slot that it frees."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs import job_rows
from jobs.checkpoints import Output
from jobs.database import note_ended, note_outcomes, statements
from jobs.database.statements import Query, Rows, Statement
from jobs.engines import attempts, reservations
from jobs.ids import uuid7
from jobs.models.output import EMBEDDING, LOG_PROBS, OUTPUT, OUTPUT_IDS, REASONING, TOOL_CALLS
from jobs.prompts.tools.calls import write_calls
from jobs.sharing import ends
from jobs.states import FinishReason, JobState
from jobs.tenants import usage
from jobs.transitions import Lease
from jobs.trees import progress as tree_progress
from jobs.webhooks import events, outbox


@dataclass(frozen=True, slots=True)
class JobCompletion:
    """The whole answer of a running job.

    Attributes:
        lease: its fence.
        output: what it generated.
        finish_reason: why it ended there.
        since_first_token: how long ago its first token came. None: its row has that already.
        since_answer: how long ago the answer was whole.
        summary_id: the tree that it is part of. None: of none.
        engine_is_done: the engine certainly holds nothing for it any longer, so its reservation can go.
    """

    lease: Lease
    output: Output
    finish_reason: FinishReason
    since_first_token: timedelta | None = None
    since_answer: timedelta = timedelta(0)
    summary_id: UUID | None = None
    engine_is_done: bool = False


@dataclass(frozen=True, slots=True)
class Completed:
    """What became of many completions.

    Attributes:
        job_ids: of the jobs that are complete now. Of the others, some leases are lost and some rows locked.
        has_deliveries: a webhook wants one of these ends.
    """

    job_ids: frozenset[UUID] = frozenset()
    has_deliveries: bool = False


def complete_all(session: Session, completions: Sequence[JobCompletion]) -> Completed:
    """Complete the jobs whose leases hold, with results and events, and close reservations.

    Waits for no row, neither a job's nor a tree's: one that another transaction is changing would hold up all
    the others. Closes the reservation of every request that the engine is done with, whatever becomes of its
    job. An end that is not stored is charged as if its worker died now: up to its checkpoint. Whoever stores
    it charges the rest: this, if the end shares a later transaction, otherwise `reservations.charge_late`.
    """
    free_trees = tree_progress.lock_free(session, trees_of(completions))
    return completed(session, statements.fetch(session, *completing(completions, free_trees=free_trees)))


def trees_of(completions: Sequence[JobCompletion]) -> set[UUID]:
    """Return the trees that these jobs are part of, of which `completing` must be told the free ones."""
    return {each.summary_id for each in completions if each.summary_id is not None}


def completing(completions: Sequence[JobCompletion], *, free_trees: Sequence[UUID] = ()) -> Query:
    """Return the query of `complete_all`; `completed` reads its rows, and does what is left.

    Args:
        completions: the answers.
        free_trees: trees that the transaction has locked; of others no job is completed.
    """
    outputs = [each.output for each in completions]
    given = {
        "ids": [each.lease.job_id for each in completions],
        "lease_ids": [each.lease.lease_id for each in completions],
        "produced": [each.num_tokens for each in outputs],
        "reasons": [each.finish_reason.value for each in completions],
        "since": [each.since_first_token for each in completions],
        "waited": [each.since_answer for each in completions],
        "are_done": [each.engine_is_done for each in completions],
        "outputs": [each.text for each in outputs],
        "output_ids": [each.packed_ids for each in outputs],
        "replaced": [each.replaced for each in outputs],
        "reasoning": [each.reasoning or None for each in outputs],
        "reasoning_tokens": [each.reasoning_tokens for each in outputs],
        "log_probs": [each.log_probs for each in outputs],
        "tool_calls": [write_calls(each.calls) for each in outputs],
        "embeddings": [each.embedding for each in outputs],
        "cached": [each.cached_tokens for each in outputs],
        "new_ids": [uuid7() for _ in completions],
        "free_trees": list(free_trees),
    }
    return Query(COMPLETE, given)


def completed(session: Session, rows: Rows) -> Completed:
    """Read the rows of `completing`, and tell and advance what follows from these ends."""
    ended = [job_id for job_id, *_ in rows]
    job_rows.expire_loaded(session, ended)
    note_ended(session, ended)
    note_outcomes(session, [JobState.COMPLETED] * len(ended))
    followed = [row for row in rows if row[1]]
    return Completed(frozenset(ended), bool(followed) and _follow(session, followed))


def _follow(session: Session, rows: Rows) -> bool:
    """Tell receivers of these ends, advance the trees of these jobs, and end their twins.

    Args:
        session: the caller's transaction.
        rows: of `COMPLETE`.

    Returns:
        True if a webhook wants one of the ends.
    """
    ended = [job_rows.written(session, row) for _, _, *row in rows]
    happened = [events.job_ended(job) for job in ended]
    tree_progress.advance(session, ended)
    has_shared = ends.share(session, ended)
    return outbox.publish(session, happened) or has_shared


_ROW: Final = {f"job_{each.name}": each for each in job_rows.JOB_ROW.values()}
# One statement, as each costs more than the rows in it. An end that a receiver may want, or for which a
# tree or twins wait, is left to `_follow`; of the others, hardly anyone has more than their events' rows.
COMPLETE: Final = Statement(
    f"""
    WITH given AS (
        SELECT * FROM unnest(
            %(ids)s::uuid[], %(lease_ids)s::uuid[], %(produced)s::integer[], %(reasons)s::text[],
            %(since)s::interval[], %(waited)s::interval[], %(are_done)s::boolean[], %(outputs)s::text[],
            %(output_ids)s::bytea[], %(replaced)s::boolean[], %(reasoning)s::text[],
            %(reasoning_tokens)s::integer[], %(log_probs)s::bytea[], %(tool_calls)s::text[],
            %(embeddings)s::bytea[], %(cached)s::integer[], %(new_ids)s::uuid[]
        ) AS given(
            id, lease_id, produced, reason, since, waited, is_done,
            output, output_ids, replaced, reasoning, reasoning_tokens, log_probs, tool_calls, embedding,
            cached, new_id
        )
    ), owned AS (
        SELECT jobs.id FROM given JOIN jobs ON jobs.id = given.id AND jobs.lease_id = given.lease_id
        WHERE {job_rows.may("complete")}
            AND (jobs.summary_id IS NULL OR jobs.summary_id = ANY(%(free_trees)s::uuid[]))
        FOR UPDATE OF jobs SKIP LOCKED
    ), ended AS (
        UPDATE jobs SET {job_rows.moves("complete")}, completion_tokens = given.produced,
            finish_reason = given.reason, cached_tokens = coalesce(jobs.cached_tokens, given.cached),
            first_token_at = coalesce(jobs.first_token_at, clock_timestamp() - given.since)
        FROM owned JOIN given USING (id)
        WHERE jobs.id = owned.id AND jobs.lease_id = given.lease_id AND {job_rows.may("complete")}
        RETURNING jobs.id, tenant_id, model, task, state, finish_reason, prompt_tokens, cached_tokens,
            completion_tokens, started_at, first_token_at, finalized_at, engine_name, choice, given.lease_id,
            given.cached AS cached_now, finalized_at - given.waited AS answered_at,
            summary_id IS NOT NULL OR has_twins OR {events.MAY_BE_WANTED} AS is_followed,
            {", ".join(f"jobs.{each.name} AS {name}" for name, each in _ROW.items())}
    ), dropped AS (
        DELETE FROM checkpoints USING ended WHERE checkpoints.job_id = ended.id
    ), stored AS (
        INSERT INTO results
            (job_id, output, output_ids, replaced, reasoning, reasoning_tokens, log_probs, tool_calls,
            embedding)
        SELECT id, output, output_ids, replaced, reasoning, reasoning_tokens, log_probs, tool_calls,
            embedding
        FROM ended JOIN given USING (id)
    ), told AS (
        INSERT INTO webhook_events (id, tenant_id, job_id, type)
        SELECT given.new_id, ended.tenant_id, ended.id, {events.ENDED_TYPE}
        FROM ended JOIN given USING (id) WHERE NOT is_followed
        ON CONFLICT DO NOTHING
    ), attempted AS ({
        attempts.insertion('''(
        SELECT id AS job_id, lease_id, engine_name, started_at, first_token_at, answered_at,
            finalized_at AS ended_at,
            state AS outcome, NULL AS error_code, prompt_tokens, cached_now AS cached_tokens,
            completion_tokens AS produced FROM ended
    )''')
    }), freed AS (
        SELECT given.lease_id, CASE WHEN ended.id IS NOT NULL THEN produced ELSE coalesce(
            (SELECT num_tokens FROM checkpoints WHERE checkpoints.job_id = given.id), 0
        ) END AS produced, given.cached
        FROM given LEFT JOIN ended USING (id) WHERE is_done
    ), noted AS ({usage.NOTE_ENDED}), {reservations.CLOSED}, settled AS ({reservations.SETTLE_WITH_LATE})
    SELECT id, is_followed,
        {", ".join(f"CASE WHEN is_followed THEN {name} END" for name in _ROW)} FROM ended
    """,  # noqa: S608  # built from constants
    sealed={
        "outputs": OUTPUT,
        "output_ids": OUTPUT_IDS,
        "reasoning": REASONING,
        "log_probs": LOG_PROBS,
        "tool_calls": TOOL_CALLS,
        "embeddings": EMBEDDING,
    },
)
