"""Fill the table with a million jobs by plain SQL, as years of use would."""

from uuid import UUID

import psycopg

NUM_TENANTS = 10
MODEL = "bench-model"
TASK = "generate"
_TENANTS = """
    INSERT INTO tenants (id, name)
    SELECT lpad(to_hex(n), 32, 'b')::uuid, 'bench-' || n FROM generate_series(0, %s) n ON CONFLICT DO NOTHING
"""
_TEXT = """
    INSERT INTO texts (id, tenant_id, sha256, body) VALUES (%(id)s, %(tenant)s, 'bench', 'no prompt')
    ON CONFLICT DO NOTHING
"""
# Prompts from 2k to 33k tokens, outputs from 150 to 1,100; the median is the middle of each on a log scale.
_JOBS = """
    INSERT INTO jobs (id, tenant_id, text_id, state, task, model, max_tokens, prompt_tokens,
                      completion_tokens, created_at, started_at, first_token_at, finalized_at, finish_reason)
    SELECT (%(digit)s || lpad(to_hex(n), 31, '0'))::uuid,
           lpad(to_hex(n %% %(tenants)s), 32, 'b')::uuid,
           %(text)s, %(state)s, %(task)s, %(model)s, 2048,
           least(96000, greatest(64, exp(9 + 0.7 * (random() * 4 - 2))::int)),
           CASE WHEN %(state)s = 'completed' THEN exp(6 + 0.5 * (random() * 4 - 2))::int ELSE 0 END,
           now() - (%(count)s - n) * interval '1 second',
           CASE WHEN %(state)s = 'completed' THEN now() - (%(count)s - n) * interval '1 second' END,
           CASE WHEN %(state)s = 'completed' THEN now() - (%(count)s - n) * interval '1 second' END,
           CASE WHEN %(state)s = 'completed' THEN now() - (%(count)s - n) * interval '1 second' END,
           CASE WHEN %(state)s = 'completed' THEN 'stop' END
    FROM generate_series(1, %(count)s) n
"""
_TEXT_ID = UUID(int=0xB)


def fill(database: psycopg.Connection, *, completed: int = 0, queued: int = 0, model: str = MODEL) -> None:
    """Add jobs of ten tenants to the table, older than any job submitted later."""
    database.execute(_TENANTS, [NUM_TENANTS - 1])
    tenant_id = database.execute("SELECT id FROM tenants ORDER BY id DESC LIMIT 1").fetchone()
    database.execute(_TEXT, {"id": _TEXT_ID, "tenant": tenant_id[0] if tenant_id else None})
    for state, count, digit in (("completed", completed, "0"), ("queued", queued, "1")):
        values = {"digit": digit, "tenants": NUM_TENANTS, "text": _TEXT_ID, "state": state}
        if count:
            database.execute(_JOBS, {**values, "task": TASK, "model": model, "count": count})
    database.execute("VACUUM (ANALYZE) jobs")  # as autovacuum would have by now
