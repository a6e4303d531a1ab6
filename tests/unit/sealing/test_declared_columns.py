"""Every column that could hold content is sealed, or it is said here why it is not."""

import ast
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import JSON, Column, LargeBinary, String
from sqlalchemy.dialects.postgresql import ARRAY

import jobs.models.audit
import jobs.models.batch
import jobs.models.console
import jobs.models.document
import jobs.models.file
import jobs.models.stray_part
import jobs.models.summary
import jobs.models.tensors  # noqa: F401  # all tables are known
from jobs.database.base import Base
from jobs.database.sealed_columns import Sealed

NO_CONTENT = {
    "names of ours, of models and engines, and what operators write": """
        accounts.model account_shards.engine_name account_shards.model adapters.model adapters.name
        adapters.format adapters.source adapters.sha256 api_keys.handle api_keys.secret_sha256
        api_keys.name api_keys.scopes attempts.engine_name attempts.worker attempts.outcome
        attempts.error_code audit_log.action audit_log.object_id audit_log.actor_kind audit_log.actor_id
        audit_log.actor_name audit_log.via audit_log.request_id audit_log.address audit_log.details
        batches.state batches.endpoint batches.completion_window batches.model batches.error_counts
        batches.traceparent console_sessions.token_sha256 console_sessions.person_issuer
        console_sessions.person_subject console_sessions.person_name console_sign_in_codes.code_sha256
        documents.kind documents.state documents.fingerprint documents.language documents.pages
        documents.encoding
        engines.name engines.model engines.tensors engines.paused_reason engines.halt
        engines.halted_reason engines.halted_by engines.halted_by_name files.purpose files.state
        file_parts.key idempotency_keys.key idempotency_keys.subject_type jobs.state jobs.stop_reason
        jobs.engine_name jobs.finish_reason jobs.lane jobs.task jobs.model jobs.adapter jobs.traceparent
        checkpoints.fingerprint engine_outputs.name engine_outputs.datatype reservations.engine_name
        reservations.state reservations.worker stray_parts.key stray_parts.seen_in summaries.purpose
        summaries.state summaries.style summaries.language summaries.on_gap summaries.model
        summaries.stop_reason summaries.refused_demand summaries.traceparent summary_nodes.kind
        tenants.name tenants.halt tenants.halted_reason tenants.halted_by tenants.halted_by_name
        tenant_limits.adapters texts.fingerprint turns.kind usage_days.model usage_days.state
        usage_entries.model usage_entries.state webhook_deliveries.outcome webhook_dispatches.state
        webhook_endpoints.events webhook_endpoints.disabled_reason webhook_events.type
        webhook_events.state webhook_events.traceparent console_sessions.person_claims
        engines.served_model engines.tokenizer engines.address workers.role workers.name
        workers.process workers.engine_name workers.model workers.refusal
    """,
    "hashes, by which equal content is found": """
        batches.request_sha256 documents.sha256 idempotency_keys.request_sha256 jobs.family
        jobs.request_digest texts.sha256 texts.prefixes
    """,
    "sealed by the vault, or where webhooks go": """
        batches.webhook_url batches.webhook_secret jobs.webhook_url jobs.webhook_secret
        summaries.webhook_url summaries.webhook_secret webhook_dispatches.url webhook_dispatches.secret
        webhook_endpoints.url webhook_endpoints.description webhook_endpoints.secret
        webhook_endpoints.old_secret webhook_events.url webhook_secrets.secret webhook_secrets.old_secret
    """,
    "callers are told to put no content there": """
        batches.metadata documents.filename files.filename jobs.custom_id jobs.metadata summaries.custom_id
        summaries.metadata
    """,
    "ids, codes, numbers and words of ours": """
        idempotency_keys.answer webhook_events.payload
        batches.errors documents.error jobs.error summaries.error summaries.gaps
        summaries.plan summaries.templates findings.gaps findings.error
    """,
}
# Decision 30: numbers and stop strings, in rows that every loop reads; and what a CHECK looks into.
LEFT_OPEN = "jobs.sampling summaries.chat_template_kwargs"
MAKERS = ("make_engine", "make_async_engine")


def columns() -> Iterator[Column[object]]:
    for table in Base.metadata.sorted_tables:
        yield from table.columns


def could_hold_content(column: Column[object]) -> bool:
    return isinstance(column.type, String | LargeBinary | JSON | ARRAY | Sealed)


def test_every_column_is_sealed_or_said_to_hold_no_content() -> None:
    declared = [name for names in (*NO_CONTENT.values(), LEFT_OPEN) for name in names.split()]
    assert len(declared) == len(set(declared))
    able = {str(each): each for each in columns() if could_hold_content(each)}
    sealed = {name for name, each in able.items() if isinstance(each.type, Sealed)}
    assert sealed.isdisjoint(declared)
    assert able.keys() - sealed == set(declared)


def test_a_value_opens_in_its_own_column_and_in_those_that_sql_copies_it_to() -> None:
    """Checkpoints become results, and outputs go into events."""
    of_results = {"checkpoints", "webhook_events"}
    for each in columns():
        if isinstance(each.type, Sealed):
            table = "results" if each.table.name in of_results else each.table.name
            assert each.type.place == f"{table}.{each.name}"


def test_every_process_that_serves_jobs_gives_its_connections_the_sealer() -> None:
    """Without it a process would write plain content, and read sealed content as nothing that it can open."""
    root = Path(__file__).resolve().parents[3]
    files = (*root.glob("api/**/*.py"), *root.glob("worker/**/*.py"))
    nodes = [(file, node) for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    calls = [
        (file.name, any(each.arg == "sealer" for each in node.keywords))
        for file, node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(MAKERS)
    ]
    assert len(calls) >= 7
    # It looks for keys of the API alone, before anything else begins.
    assert {name for name, is_given in calls if not is_given} == {"server.py"}
