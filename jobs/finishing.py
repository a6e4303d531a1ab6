"""How jobs leave their engines and how they end: one statement for a set of jobs, whatever becomes of each.

A job completes, fails, is cancelled or expires, or it goes back to the queue. A single end is a set of one.
`lifecycle.finish` is the verb; this module is its statement and the events of the ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs import job_rows
from jobs.checkpoints import CONTENT, GENERATED, Output, columns_of
from jobs.database import note_ended, note_outcomes, statements
from jobs.database.statements import Statement, as_json
from jobs.engines import attempts, reservations
from jobs.ids import uuid7
from jobs.models import Job, JsonObject
from jobs.models.output import EMBEDDING
from jobs.states import TERMINAL, TRANSITIONS, AttemptOutcome, FinishReason, JobState, StopReason
from jobs.tenants import usage
from jobs.webhooks import events, outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """What becomes of a job as its run ends, or as it ends without a run.

    A job that should go back to the queue ends instead if a request asked for that.

    Attributes:
        job_id: the job.
        lease_id: the fence of its run. None: the job does not run.
        verb: of `TRANSITIONS`. None: the lease is lost, and only the reservation is released.
        outcome: of the run, if the job goes back to the queue, or if it is `LOST`. Otherwise the job's new
            state says it.
        output: what the job has generated, in all runs. None: nothing new.
        finish_reason: of a complete answer.
        error: of a job that fails, or that fails unless `limit` leaves it another run.
        error_code: of the error that ended the run. None: there was none.
        limit: of attempts for `retry`, of rescues for `rescue`; then the job fails.
        wait: for how long it is not claimed again; for `retry` after the first attempt, doubled by each.
        prompt_tokens: the length that the prompt really has. None: it was counted well.
        since_first_token: how long ago its first token came. None: its row has that already.
        since_answer: how long ago a complete answer was whole. None: it is not complete.
        summary_id: the tree that it is part of. None: of none, or it does not run.
        engine_is_done: the engine certainly holds nothing for it any longer, so its reservation can go.
    """

    job_id: UUID
    lease_id: UUID | None = None
    verb: str | None
    outcome: AttemptOutcome | None = None
    output: Output | None = None
    finish_reason: FinishReason | None = None
    error: JsonObject | None = None
    error_code: str | None = None
    limit: int | None = None
    wait: timedelta | None = None
    prompt_tokens: int | None = None
    since_first_token: timedelta | None = None
    since_answer: timedelta | None = None
    summary_id: UUID | None = None
    engine_is_done: bool = False

    @property
    def key(self) -> UUID:
        """Identify the end: by the lease of its run, or by its job if it has none."""
        return self.lease_id or self.job_id

    @property
    def has_output(self) -> bool:
        """True if `output` replaces what the last checkpoint holds."""
        return self.output is not None and (self.verb == "complete" or self.output.num_tokens > 0)


@dataclass(frozen=True, slots=True)
class StoredEnd:
    """What became of an end.

    Attributes:
        state: the job's new state. None: the lease is lost, or the end could not be stored.
        may_have_deliveries: a webhook may want it. A lease may be lost because this end is stored already, by
            a transaction whose commit was not confirmed.
    """

    state: JobState | None
    may_have_deliveries: bool = False


@dataclass(frozen=True, slots=True)
class FinishResult:
    """What a statement did.

    Attributes:
        states: the new states of jobs, by `JobEnd.key`; None: the lease is lost. An absent one has a
            locked row or tree.
        followed: jobs that ended, for which receivers, trees or twins may wait.
    """

    states: Mapping[UUID, JobState | None]
    followed: Sequence[Job]


def finish(session: Session, ends: Sequence[JobEnd], *, free_trees: Sequence[UUID] = ()) -> FinishResult:
    """Finish these jobs or queue them again; the caller publishes what is followed, advances trees and twins.

    Waits for no row of a job. Releases the reservation of every request that the engine is done with,
    whatever becomes of its job. An end that is not stored is charged as if its worker died now: up to its
    checkpoint. The statement that stores it later charges the rest.

    Args:
        session: the caller's transaction.
        ends: of different jobs or runs; all of runs, or none.
        free_trees: trees that the transaction has locked; of others no run's end is stored.
    """
    if not ends:
        return FinishResult({}, ())
    sql = END_RUNS if any(each.lease_id for each in ends) else END_JOBS
    rows = statements.fetch(session, sql, _given(ends) | {"free_trees": free_trees})
    moved = {job_id: JobState(state) for job_id, _, state, *_ in rows if state}
    ended = {job_id: state for job_id, state in moved.items() if state in TERMINAL}
    job_rows.expire_loaded(session, list(moved))
    note_ended(session, ended)
    note_outcomes(session, ended.values())
    followed = [job_rows.written(session, row) for _, _, _, is_followed, *row in rows if is_followed]
    return FinishResult({key: moved[job_id] if state else None for job_id, key, state, *_ in rows}, followed)


def _given(ends: Sequence[JobEnd]) -> dict[str, object]:
    outputs = [each.output if each.has_output else None for each in ends]
    generated = [columns_of(each) if each is not None else _NO_OUTPUT for each in outputs]
    return {
        "ids": [each.job_id for each in ends],
        "lease_ids": [each.lease_id for each in ends],
        "verbs": [each.verb for each in ends],
        "outcomes": [each.outcome and each.outcome.value for each in ends],
        "reasons": [each.finish_reason and each.finish_reason.value for each in ends],
        "errors": as_json([each.error for each in ends]),
        "error_codes": [each.error_code for each in ends],
        "limits": [each.limit for each in ends],
        "waits": [each.wait for each in ends],
        "counted": [each.prompt_tokens for each in ends],
        "since_first": [each.since_first_token for each in ends],
        "since_answer": [each.since_answer for each in ends],
        "are_done": [each.engine_is_done for each in ends],
        "have_output": [each.has_output for each in ends],
        "are_resumable": [each.output is None or each.output.is_resumable for each in ends],
        "cached": [each.output.cached_tokens if each.output is not None else None for each in ends],
        "new_ids": [uuid7() for _ in ends],
        **{name: [each[name] for each in generated] for name in _SAVED},
    }


def record(session: Session, ended: Sequence[Job]) -> bool:
    """Record the ends of jobs that other statements have ended: usage, events, and who waits for them.

    Returns:
        True if a webhook wants one of the ends.
    """
    if not ended:
        return False
    note_ended(session, [job.id for job in ended])
    usage.record(session, ended)
    return publish(session, ended)


def publish(session: Session, ended: Sequence[Job]) -> bool:
    """Publish the events of these ends; return True if a webhook wants one of them."""
    return outbox.publish(session, [events.job_ended(job) for job in ended])


# The columns of checkpoints, but for their job, with types.
_SAVED: Final = {
    "output": "text",
    "output_ids": "bytea",
    "num_tokens": "integer",
    "fingerprint": "text",
    "replaced": "boolean",
    "reasoning": "text",
    "reasoning_tokens": "integer",
    "log_probs": "bytea",
    "tool_calls": "text",
    "embedding": "bytea",
}
_NO_OUTPUT: Final[dict[str, Any]] = dict.fromkeys(_SAVED)
_FINAL: Final = ", ".join(f"'{verb}'" for verb, (_, target) in TRANSITIONS.items() if target in TERMINAL)
# A verb may start from certain states. A job that is given without its run must not run.
_MAY: Final = f"""(given.asked, jobs.state) IN ({
    ", ".join(
        f"('{verb}', '{state}')" for verb, (states, _) in TRANSITIONS.items() for state in sorted(states)
    )
}) AND CASE WHEN given.lease_id IS NULL THEN jobs.state <> '{JobState.RUNNING}'
    ELSE jobs.lease_id = given.lease_id END"""
# A request to end the job, and a limit, are stronger than a way back into the queue.
_VERB: Final = f"""CASE
    WHEN given.asked IN ({_FINAL}) THEN given.asked
    WHEN jobs.stop_reason IN ('{StopReason.CANCEL}', '{StopReason.EXPIRE}') THEN jobs.stop_reason
    WHEN given.asked = 'retry' AND jobs.attempt + 1 >= given.max_runs THEN 'fail'
    WHEN given.asked = 'rescue' AND jobs.num_rescues >= given.max_runs THEN 'fail'
    ELSE given.asked END"""
_STATE: Final = f"""CASE verb {
    " ".join(f"WHEN '{verb}' THEN '{target}'" for verb, (_, target) in TRANSITIONS.items())
} END"""
_GENERATED: Final = ", ".join(GENERATED)
_COLUMNS: Final = ", ".join(_SAVED)
# What a run leaves: its attempt, its reservation, and what its tenant is charged.
_RUNS: Final = f"""
    , pruned AS ({attempts.pruning("decided")}), attempted AS ({
    attempts.insertion('''(
        SELECT id AS job_id, lease_id, engine_name, started_at, first_token_at,
            now - since_answer AS answered_at, now AS ended_at,
            CASE WHEN verb = asked OR outcome = 'lost' THEN coalesce(outcome, state) ELSE state END
                AS outcome,
            CASE WHEN verb = asked OR verb = 'fail' OR outcome = 'lost' THEN error_code END AS error_code,
            prompt_tokens, cached AS cached_tokens,
            CASE WHEN has_output THEN num_tokens ELSE reported END AS produced
        FROM decided
    )''')
}), freed AS (
        SELECT given.lease_id, given.cached, given.is_done, coalesce(
            decided.kept, (SELECT num_tokens FROM checkpoints WHERE checkpoints.job_id = given.id), 0
        ) AS produced
        FROM given LEFT JOIN decided USING (new_id)
        WHERE given.is_done OR decided.id IS NOT NULL OR new_id IN (SELECT new_id FROM lost)
    ), {reservations.RELEASED}, late AS (
        SELECT tenant_id, model, engine_name, kept - saved AS num_tokens FROM decided
        WHERE NOT EXISTS (SELECT FROM reservations WHERE reservations.lease_id = decided.lease_id)
    ), settled AS ({reservations.SETTLE})
"""  # noqa: S608  # built from constants


def _statement(of_runs: str) -> Statement:
    """Return the statement: one, as each costs more than the rows in it.

    An end that a receiver may want, or for which a tree or twins wait, is left to the caller. Of the others,
    hardly anyone has more than their events' rows. The checkpoint of a job with twins that has no whole
    answer stays for the one that goes on from there.
    """
    return Statement(
        f"""
    WITH given AS (
        SELECT * FROM unnest(
            %(ids)s::uuid[], %(lease_ids)s::uuid[], %(verbs)s::text[], %(outcomes)s::text[],
            %(reasons)s::text[], %(errors)s::jsonb[], %(error_codes)s::text[], %(limits)s::integer[],
            %(waits)s::interval[], %(counted)s::integer[], %(since_first)s::interval[],
            %(since_answer)s::interval[], %(are_done)s::boolean[], %(have_output)s::boolean[],
            %(are_resumable)s::boolean[], %(cached)s::integer[], %(new_ids)s::uuid[],
            {", ".join(f"%({name})s::{kind}[]" for name, kind in _SAVED.items())}
        ) AS given(
            id, lease_id, asked, outcome, reason, failure, error_code, max_runs, wait, counted,
            since_first, since_answer, is_done, has_output, is_resumable, cached, new_id, {_COLUMNS}
        )
    ), lost AS (
        SELECT new_id FROM given WHERE asked IS NULL OR lease_id IS NOT NULL
            AND lease_id IS DISTINCT FROM (SELECT jobs.lease_id FROM jobs WHERE jobs.id = given.id)
    ), owned AS (
        SELECT given.new_id, {_VERB} AS verb, jobs.tenant_id, jobs.model, jobs.engine_name,
            jobs.prompt_tokens,
            jobs.completion_tokens AS reported, jobs.started_at, jobs.has_twins, clock_timestamp() AS now,
            coalesce(jobs.first_token_at, clock_timestamp() - given.since_first) AS first_token_at,
            coalesce((SELECT num_tokens FROM checkpoints WHERE checkpoints.job_id = jobs.id), 0) AS saved
        FROM given JOIN jobs ON jobs.id = given.id
        WHERE jobs.id = ANY(%(ids)s::uuid[]) AND {_MAY} AND (
            jobs.summary_id IS NULL OR given.lease_id IS NULL OR jobs.summary_id = ANY(%(free_trees)s::uuid[])
        )
        FOR NO KEY UPDATE OF jobs SKIP LOCKED
    ), ruled AS (
        SELECT *, {_STATE} AS state, verb IN ({_FINAL}) AS is_final FROM owned JOIN given USING (new_id)
    ), decided AS (
        SELECT *,
            CASE WHEN has_output AND (is_final OR is_resumable) THEN num_tokens
                WHEN is_final OR is_resumable THEN saved ELSE 0 END AS kept,
            CASE WHEN is_final THEN verb = 'complete' OR NOT has_twins ELSE NOT is_resumable END AS drops,
            NOT is_final AND counted IS NOT NULL AS is_recounted
        FROM ruled
    ), moved AS (
        UPDATE jobs SET state = decided.state, lease_id = NULL, lease_expires_at = NULL,
            finalized_at = CASE WHEN is_final THEN now END,
            engine_name = CASE WHEN is_final THEN jobs.engine_name END,
            stop_reason = CASE WHEN is_final THEN jobs.stop_reason END,
            run_after = CASE WHEN is_final THEN jobs.run_after
                WHEN verb = 'retry' THEN now + wait * power(2, jobs.attempt) ELSE now + wait END,
            attempt = jobs.attempt
                + CASE WHEN asked = 'retry' AND verb IN ('retry', 'fail') THEN 1 ELSE 0 END,
            num_rescues = jobs.num_rescues + CASE WHEN verb = 'rescue' THEN 1 ELSE 0 END,
            num_yields = jobs.num_yields
                + CASE WHEN NOT is_final AND outcome = '{AttemptOutcome.YIELDED}' THEN 1 ELSE 0 END,
            num_preemptions = jobs.num_preemptions
                + CASE WHEN NOT is_final AND outcome = '{AttemptOutcome.PREEMPTED}' AND has_output THEN 1
                    ELSE 0 END,
            finish_reason = CASE WHEN verb = 'complete' THEN reason END,
            error = CASE WHEN decided.state = '{JobState.FAILED}' THEN failure END,
            completion_tokens = kept,
            first_token_at = CASE WHEN is_final OR kept > 0 THEN decided.first_token_at END,
            prompt_tokens = CASE WHEN is_recounted THEN counted ELSE jobs.prompt_tokens END,
            reserved_tokens = CASE WHEN is_recounted THEN counted + jobs.max_tokens
                ELSE jobs.reserved_tokens END,
            cached_tokens = CASE WHEN NOT is_recounted THEN coalesce(jobs.cached_tokens, cached) END,
            family = CASE WHEN NOT is_recounted THEN jobs.family END
        FROM decided WHERE jobs.id = decided.id AND jobs.id = ANY(%(ids)s::uuid[])
        RETURNING jobs.*, is_final, new_id,
            is_final AND (jobs.summary_id IS NOT NULL OR jobs.has_twins OR {events.MAY_BE_WANTED})
                AS is_followed
    ), ended AS (
        SELECT * FROM moved WHERE is_final
    ), kept AS (
        INSERT INTO checkpoints (job_id, {_COLUMNS})
        SELECT id, {_COLUMNS} FROM decided WHERE has_output AND NOT drops
        ON CONFLICT (job_id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _SAVED)}
    ), dropped AS (
        DELETE FROM checkpoints USING decided
        WHERE checkpoints.job_id = decided.id AND checkpoints.job_id = ANY(%(ids)s::uuid[]) AND drops
    ), stored AS (
        INSERT INTO results (job_id, {_GENERATED})
        SELECT id, {_GENERATED} FROM decided WHERE is_final AND has_output
        UNION ALL
        SELECT id, {", ".join(f"checkpoints.{name}" for name in GENERATED)}
        FROM decided JOIN checkpoints ON checkpoints.job_id = decided.id
        WHERE checkpoints.job_id = ANY(%(ids)s::uuid[]) AND is_final AND NOT has_output
    ), told AS (
        INSERT INTO webhook_events (id, tenant_id, job_id, type)
        SELECT new_id, tenant_id, id, {events.ENDED_TYPE} FROM ended WHERE NOT is_followed
        ON CONFLICT DO NOTHING
    ), noted AS ({usage.NOTE_ENDED}){of_runs}
    SELECT given.id, coalesce(given.lease_id, given.id), moved.state, coalesce(is_followed, false),
        {", ".join(f"CASE WHEN is_followed THEN moved.{each.name} END" for each in job_rows.JOB_ROW.values())}
    FROM given LEFT JOIN moved USING (new_id)
    WHERE moved.id IS NOT NULL OR new_id IN (SELECT new_id FROM lost)
    """,  # noqa: S608  # built from constants
        sealed=CONTENT | {"embedding": EMBEDDING},
    )


END_RUNS: Final = _statement(_RUNS)
END_JOBS: Final = _statement("")
