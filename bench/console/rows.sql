-- What a month of use leaves in the database. Parameters are psycopg's; a statement ends with a line that ends with a semicolon.

-- A UUIDv7 of a moment and a number.
CREATE OR REPLACE FUNCTION pg_temp.id_at(at timestamptz, n bigint) RETURNS uuid IMMUTABLE LANGUAGE sql AS $$
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
    || lpad(to_hex(n %% 4096), 3, '0') || '8' || lpad(to_hex(n), 15, '0'))::uuid $$;

-- One tenant has half of everything, 199 share the rest.
CREATE OR REPLACE FUNCTION pg_temp.owner(n bigint) RETURNS uuid IMMUTABLE LANGUAGE sql AS $$
SELECT pg_temp.id_at('2026-01-01', CASE WHEN n %% 2 = 0 THEN 0 ELSE 1 + (n / 2) %% 199 END) $$;

INSERT INTO tenants (id, name) SELECT pg_temp.id_at('2026-01-01', n), 'bench-' || n
FROM generate_series(0, %(tenants)s - 1) n;

INSERT INTO texts (id, tenant_id, sha256, body)
SELECT t.id, t.id, sha256(t.name::bytea), %(body)s FROM tenants t;

-- Jobs that ended, one in 2.5 seconds; the newest 15,000 are the first tenant's, failed, and of the last hour.
INSERT INTO jobs (id, tenant_id, text_id, state, task, model, max_tokens, prompt_tokens, completion_tokens,
    created_at, started_at, first_token_at, finalized_at, finish_reason, error, engine_name, custom_id,
    batch_id, is_reported)
SELECT pg_temp.id_at(at - interval '5 minutes', n), owner, owner, state, 'generate', %(model)s, 2048,
    2000 + n %% 30000, CASE WHEN state = 'completed' THEN 100 + n %% 900 ELSE 0 END,
    at - interval '5 minutes', at - interval '2 minutes', at - interval '1 minute', at,
    CASE WHEN state = 'completed' THEN 'stop' END,
    CASE WHEN state = 'failed' THEN jsonb_build_object('code', 'engine_error_' || n %% 7, 'message', 'no answer') END,
    'engine-' || n %% 8, 'doc-' || n,
    CASE WHEN n %% 4 = 0 THEN pg_temp.id_at('2026-02-01', n / 1000) END, true
FROM (SELECT n, CASE WHEN n > %(ended)s - 15000 THEN pg_temp.owner(0) ELSE pg_temp.owner(n) END AS owner,
        CASE WHEN n > %(ended)s - 15000 OR n %% 50 = 0 THEN 'failed' WHEN n %% 100 = 1 THEN 'cancelled'
            WHEN n %% 100 = 2 THEN 'expired' ELSE 'completed' END AS state,
        CASE WHEN n > %(ended)s - 15000 THEN now() - (%(ended)s - n) * interval '0.2 seconds'
            ELSE now() - interval '1 hour' - (%(ended)s - n) * interval '2.5 seconds' END AS at
    FROM generate_series(1, %(ended)s) n) AS made;

-- Jobs that wait: queued, blocked or preparing.
INSERT INTO jobs (id, tenant_id, text_id, state, task, model, max_tokens, prompt_tokens, created_at, lane,
    custom_id, reserved_tokens, batch_id)
SELECT pg_temp.id_at(now() - (count - n) * interval '0.1 seconds', n), pg_temp.owner(n), pg_temp.owner(n),
    state, 'generate', %(model)s, 2048, CASE WHEN state <> 'preparing' THEN 2000 + n %% 30000 END,
    now() - (count - n) * interval '0.1 seconds', CASE WHEN n %% 97 = 0 THEN 'interactive' ELSE 'batch' END,
    'waiting-' || n, 20000, CASE WHEN n %% 4 = 0 THEN pg_temp.id_at('2026-02-02', 0) END
FROM (VALUES ('queued', %(queued)s), ('blocked', %(queued)s / 100), ('preparing', %(queued)s / 200)) AS kinds(state, count),
    LATERAL generate_series(1, count) n;

INSERT INTO engines (name, model, max_batch_size, max_blocks, tokens_per_block, max_input_len, max_seq_len, seen_at)
SELECT 'engine-' || n, %(model)s, 64, 65536, 64, 96000, 131072, now() FROM generate_series(0, 7) n;

WITH made AS (INSERT INTO jobs (id, tenant_id, text_id, state, task, model, max_tokens, prompt_tokens, created_at,
        started_at, lease_id, lease_expires_at, engine_name, reserved_tokens)
    SELECT pg_temp.id_at(now() - interval '7 hours', n), pg_temp.owner(n), pg_temp.owner(n), 'running', 'generate',
        %(model)s, 2048, 2000 + n, now() - interval '7 hours', now() - interval '1 minute',
        pg_temp.id_at(now(), n), now() + interval '10 days', 'engine-' || n %% 8, 20000
    FROM generate_series(1, 512) n RETURNING id, lease_id, engine_name)
INSERT INTO reservations (lease_id, engine_name, job_id, blocks, output_tokens)
SELECT lease_id, engine_name, id, 64, 2048 FROM made;

-- The default tenant has twenty old jobs.
UPDATE jobs SET tenant_id = d.id, text_id = d.id, batch_id = NULL
FROM (SELECT id FROM tenants WHERE name = 'default') d
WHERE jobs.id IN (SELECT id FROM jobs WHERE state = 'completed' ORDER BY id LIMIT 20);

INSERT INTO attempts (job_id, lease_id, engine_name, started_at, first_token_at, ended_at, outcome,
    prompt_tokens, completion_tokens, blocks)
SELECT id, id, engine_name, started_at, first_token_at, finalized_at, 'completed', prompt_tokens,
    completion_tokens, 512
FROM jobs WHERE state = 'completed';

INSERT INTO files (id, tenant_id, purpose, filename, state, num_bytes, created_at)
SELECT b, pg_temp.owner(0), 'batch', 'lines.jsonl', 'complete', 0, now()
FROM (SELECT pg_temp.id_at('2026-02-01', n) b FROM generate_series(0, %(ended)s / 1000) n
    UNION ALL SELECT pg_temp.id_at('2026-02-02', 0)) made;

INSERT INTO batches (id, tenant_id, state, endpoint, completion_window, input_file_id, num_lines, num_completed,
    num_failed, is_expanded, request_sha256, created_at, expires_at, in_progress_at, completed_at)
SELECT id, tenant_id, CASE WHEN is_open THEN 'in_progress' ELSE 'completed' END, '/v1/chat/completions', '24h', id,
    CASE WHEN is_open THEN %(queued)s / 4 ELSE 250 END, CASE WHEN is_open THEN 0 ELSE 245 END,
    CASE WHEN is_open THEN 0 ELSE 5 END, true, sha256('x'), now() - interval '1 day', now() + interval '1 day',
    now() - interval '1 day', CASE WHEN NOT is_open THEN now() END
FROM (SELECT *, id = pg_temp.id_at('2026-02-02', 0) AS is_open FROM files) f;

INSERT INTO documents (id, tenant_id, sha256, kind, filename, num_bytes, state, num_pages, num_chars, num_tokens,
    fingerprint, created_at, finalized_at, error)
SELECT pg_temp.id_at(now() - n * interval '1 minute', n), pg_temp.owner(n), sha256(n::text::bytea), 'pdf',
    'report-' || n || '.pdf', 100000 + n, CASE WHEN n %% 50 = 0 THEN 'failed' ELSE 'ready' END, 12, 50000, 12000,
    'f', now() - n * interval '1 minute', now() - n * interval '1 minute',
    CASE WHEN n %% 50 = 0 THEN '{"code": "unreadable", "message": "no text"}'::jsonb END
FROM generate_series(1, %(documents)s) n;

WITH made AS (INSERT INTO summaries (id, tenant_id, state, is_combined, style, length, on_gap, model, templates,
        created_at, finalized_at, error)
    SELECT id, tenant_id, 'failed', false, 'paragraph', 300, 'fail', %(model)s, '{}', created_at, finalized_at,
        '{"code": "engine_error", "message": "no answer"}'
    FROM documents RETURNING id, tenant_id)
INSERT INTO summary_documents (summary_id, position, tenant_id, document_id) SELECT id, 0, tenant_id, id FROM made;

-- Two summaries of the first tenant with trees of 50,000 leaves, 20 joined at once: one is half done, and one in
-- fifty of what ended failed; the other has ended.
CREATE TEMPORARY TABLE trees AS
SELECT pg_temp.id_at(now() - n * interval '1 hour', 1) AS id, n = 0 AS is_open, pg_temp.owner(0) AS tenant_id,
    (SELECT id FROM documents WHERE tenant_id = pg_temp.owner(0) AND state = 'ready' LIMIT 1) AS document_id
FROM generate_series(0, 1) n;

CREATE TEMPORARY TABLE places AS
SELECT t.*, level, first + i AS number, CASE WHEN level < 4 THEN above + i / 20 END AS parent,
    pg_temp.id_at(now() - interval '3 hours' - CASE WHEN is_open THEN interval '0' ELSE interval '1 hour' END,
        2 * (first + i)) AS job_id,
    CASE WHEN is_open AND level > 0 THEN 'blocked' WHEN is_open AND i > 25500 THEN 'queued'
        WHEN is_open AND i > 25000 THEN 'running' WHEN level = 0 AND i %% 50 = 7 THEN 'failed'
        ELSE 'completed' END AS state
FROM trees t, (VALUES (0, 0, 50000, 50000), (1, 50000, 2500, 52500), (2, 52500, 125, 52625), (3, 52625, 7, 52632),
    (4, 52632, 1, NULL)) AS levels(level, first, count, above), LATERAL generate_series(0, count - 1) i;

INSERT INTO summaries (id, tenant_id, state, is_combined, style, length, on_gap, model, templates, created_at,
    planned_at, finalized_at, root_job_id, plan, num_completed)
SELECT id, tenant_id, CASE WHEN is_open THEN 'running' ELSE 'completed' END, false, 'paragraph', 300, 'skip', %(model)s,
    '{}', now(), now(), CASE WHEN NOT is_open THEN now() END,
    (SELECT job_id FROM places WHERE places.id = trees.id AND level = 4),
    '{"levels": 5, "chunks": 50000, "jobs": 52633, "chunk_tokens": 4000, "part_tokens": 300, "fan_in": 20,
    "prompt_tokens": 210532000}', 0
FROM trees;

INSERT INTO summary_documents (summary_id, position, tenant_id, document_id)
SELECT id, 0, tenant_id, document_id FROM trees;

INSERT INTO jobs (id, tenant_id, text_id, state, task, model, max_tokens, prompt_tokens, completion_tokens, created_at,
    started_at, finalized_at, finish_reason, error, engine_name, lease_id, lease_expires_at, summary_id)
SELECT job_id, tenant_id, tenant_id, state, CASE WHEN level = 0 THEN 'summary_map' ELSE 'summary_reduce' END, %(model)s,
    300, 4000, CASE WHEN state = 'completed' THEN 300 ELSE 0 END, now() - interval '3 hours',
    CASE WHEN state NOT IN ('queued', 'blocked') THEN now() - interval '2 hours' END,
    CASE WHEN state IN ('completed', 'failed') THEN now() - interval '2 hours' END,
    CASE WHEN state = 'completed' THEN 'stop' END,
    CASE WHEN state = 'failed' THEN '{"code": "engine_error", "message": "no answer"}'::jsonb END,
    CASE WHEN state NOT IN ('queued', 'blocked') THEN 'engine-0' END,
    CASE WHEN state = 'running' THEN job_id END, CASE WHEN state = 'running' THEN now() + interval '10 days' END, id
FROM places;

INSERT INTO results (job_id, output, output_ids) SELECT job_id, 'What it says.', '\x' FROM places WHERE state = 'completed';

INSERT INTO summary_nodes (summary_id, number, tenant_id, kind, level, parent, document_id, chunk, start_char,
    end_char, context_char, tokens, job_id)
SELECT id, number, tenant_id, CASE WHEN level = 0 THEN 'map' ELSE 'reduce' END, level, parent,
    CASE WHEN level = 0 THEN document_id END, CASE WHEN level = 0 THEN number END,
    CASE WHEN level = 0 THEN number END, CASE WHEN level = 0 THEN number + 1 END,
    CASE WHEN level = 0 THEN number END, 4000, job_id
FROM places;

UPDATE summaries SET num_completed = ends.completed, num_failed = ends.failed,
    ended_tokens = 4000 * (ends.completed + ends.failed), used_prompt_tokens = 4000 * (ends.completed + ends.failed),
    used_completion_tokens = 300 * ends.completed
FROM (SELECT id, count(*) FILTER (WHERE state = 'completed') AS completed,
        count(*) FILTER (WHERE state = 'failed') AS failed FROM places GROUP BY id) AS ends
WHERE summaries.id = ends.id;

INSERT INTO webhook_events (id, tenant_id, job_id, type, created_at)
SELECT pg_temp.id_at(finalized_at, 1), tenant_id, id, 'job.' || state, finalized_at FROM jobs
WHERE finalized_at > now() - interval '10 days';

INSERT INTO webhook_endpoints (id, tenant_id, url, events, secret)
SELECT pg_temp.id_at('2026-03-01', n), pg_temp.owner(0), 'https://hooks.example/' || n, '{job.completed}', '\x00'
FROM generate_series(1, 50) n;

INSERT INTO webhook_dispatches (id, tenant_id, event_id, destination_id, endpoint_id, state, num_attempts, queued_at)
SELECT e.id, e.tenant_id, e.id, pg_temp.id_at('2026-03-01', 1 + n %% 50), pg_temp.id_at('2026-03-01', 1 + n %% 50),
    CASE WHEN n %% 40 = 0 THEN 'failed' ELSE 'delivered' END, 1, e.created_at
FROM (SELECT *, row_number() OVER (ORDER BY id) n FROM webhook_events WHERE tenant_id = pg_temp.owner(0)) e;

INSERT INTO webhook_deliveries (id, event_id, tenant_id, endpoint_id, attempt, status, outcome, latency_ms, created_at)
SELECT id, event_id, tenant_id, endpoint_id, 1, CASE WHEN state = 'failed' THEN 500 ELSE 200 END,
    CASE WHEN state = 'failed' THEN 'refused' ELSE 'delivered' END, 30, queued_at FROM webhook_dispatches;

INSERT INTO usage_days (tenant_id, day, model, state, num_jobs, prompt_tokens, completion_tokens)
SELECT t.id, current_date - d, m, s, 1000, 10000000, 500000
FROM tenants t, generate_series(0, 364) d, unnest(ARRAY['a', 'b']) m, unnest(ARRAY['completed', 'failed']) s;

INSERT INTO api_keys (id, tenant_id, handle, secret_sha256, name, scopes)
SELECT pg_temp.id_at('2026-04-01', n), pg_temp.owner(n), lpad(to_hex(n), 16, '0'), sha256(n::text::bytea), 'key', '{read}'
FROM generate_series(1, 2000) n;
