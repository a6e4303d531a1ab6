import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from jobs.database import schema
from jobs.models import DEFAULT_TENANT


def test_the_schema_goes_up_down_and_up_again_and_matches_the_models(empty: Engine) -> None:
    schema.upgrade(empty)
    first = set(inspect(empty).get_table_names())
    schema.downgrade(empty, "base")
    assert set(inspect(empty).get_table_names()) == {"alembic_version"}
    schema.upgrade(empty)
    assert set(inspect(empty).get_table_names()) == first
    with empty.connect() as connection:
        config = schema._config()
        config.attributes["connection"] = connection
        command.check(config)  # raises when a model and the schema differ


def test_the_revision_is_read_as_alembic_reads_it(empty: Engine) -> None:
    assert schema.head() == ScriptDirectory.from_config(schema._config()).get_current_head()
    for revision in ("0005", "head"):
        with Session(empty) as session:
            before = schema.current(session)
        schema.upgrade(empty, revision)
        with Session(empty) as session:
            assert (before, schema.current(session)) in {(None, "0005"), ("0005", schema.head())}


KEPT = text("SELECT coalesce(sum(num_bytes), 0) FROM stored_notes WHERE tenant_id = :id").bindparams(
    id=DEFAULT_TENANT
)
NUM_NOTES = text("SELECT count(*) FROM stored_notes")
BACK = text("UPDATE alembic_version SET version_num = '0028'")


@pytest.fixture
def stored(empty: Engine) -> Engine:
    """A database before stored bytes were counted, which keeps a text of 5 bytes and a result of 4."""
    schema.upgrade(empty, "0028")
    rows = (
        "INSERT INTO texts (id, tenant_id, sha256, body) SELECT id, id, 'a', '12345' FROM tenants",
        """INSERT INTO jobs
        (id, tenant_id, text_id, state, task, model, prompt_tokens, max_tokens, created_at)
        SELECT id, tenant_id, id, 'queued', 'generate', 'm', 1, 1, now() FROM texts""",
        "INSERT INTO results (job_id, output, output_ids) SELECT id, '123', '4' FROM jobs",
    )
    with empty.begin() as connection:
        for statement in rows:
            connection.execute(text(statement))
    return empty


def test_what_was_stored_before_is_counted_once_even_if_the_upgrade_died(stored: Engine) -> None:
    died = text("COMMENT ON FUNCTION count_stored_file_parts_insert() IS NULL")
    for before in (BACK, died):
        schema.upgrade(stored)
        with stored.begin() as connection:
            assert connection.scalar(KEPT) == 9
            connection.execute(BACK)
            connection.execute(before)
    schema.upgrade(stored)
    with stored.begin() as connection:
        connection.execute(text("UPDATE texts SET token_ids = '67'"))
        assert connection.scalar(KEPT) == 11
        connection.execute(text("DELETE FROM jobs"))
        connection.execute(text("DELETE FROM texts"))
        assert connection.scalar(KEPT) == 0


def test_an_upgrade_that_found_a_table_locked_counts_only_what_is_left(stored: Engine) -> None:
    notes = text("SELECT id FROM stored_notes")
    with stored.begin() as other:
        other.execute(text("LOCK TABLE results IN ROW EXCLUSIVE MODE"))  # as whoever writes it
        with pytest.raises(OperationalError):
            schema.upgrade(stored)
        (counted,) = other.scalars(notes)
    schema.upgrade(stored)
    with stored.begin() as connection:
        assert connection.scalar(KEPT) == 9
        assert counted in connection.scalars(notes).all(), "the texts are counted anew"


ASKED = text(
    """INSERT INTO summaries (id, tenant_id, purpose, questions, state, is_combined, style, length,
        on_gap, model, templates, created_at)
    SELECT id, id, 'answers', '["why?"]', 'preparing', false, 'paragraph', 9, 'skip', 'm', '{}', now()
    FROM tenants"""
)


def test_findings_that_were_there_are_counted_once_and_no_longer_after_a_downgrade(empty: Engine) -> None:
    schema.upgrade(empty, "0058")
    with empty.begin() as connection:
        connection.execute(ASKED)
        connection.execute(
            text(
                "INSERT INTO findings (summary_id, place, tenant_id, value, quote)"
                " SELECT id, 0, id, '\"1\"', '2345' FROM tenants"
            )
        )
    there = len('[]"1"2345')
    for _ in range(2):
        schema.upgrade(empty, "0059")
        with empty.begin() as connection:
            assert connection.scalar(KEPT) == there
        schema.downgrade(empty, "0058")
        with empty.begin() as connection:
            assert connection.scalar(KEPT) == 0
    schema.upgrade(empty, "0059")
    with empty.begin() as connection:
        connection.execute(text("UPDATE findings SET quote = '23456'"))
        assert connection.scalar(KEPT) == there + 1
        connection.execute(text("DELETE FROM summaries"))
        assert connection.scalar(KEPT) == 0, "they go with what asked for them"


def test_questions_that_were_there_are_counted_once_and_no_longer_after_a_downgrade(empty: Engine) -> None:
    schema.upgrade(empty, "0059")
    with empty.begin() as connection:
        connection.execute(ASKED)
    there = len('["why?"][]')
    for _ in range(2):
        schema.upgrade(empty, "0060")
        with empty.begin() as connection:
            assert connection.scalar(KEPT) == there
        schema.downgrade(empty, "0059")
        with empty.begin() as connection:
            assert connection.scalar(KEPT) == 0
    schema.upgrade(empty, "0060")
    extraction = """purpose = 'extraction', questions = NULL, schema = '{"a":  1}', joins = '{"a": "all"}'"""
    with empty.begin() as connection:
        num_notes = connection.scalar(NUM_NOTES)
        for change in ("num_failed = 1", "gaps = gaps, questions = questions, fault = NULL"):
            connection.execute(text(f"UPDATE summaries SET {change}"))  # noqa: S608  # ours
        assert connection.scalar(NUM_NOTES) == num_notes, "other changes note nothing"
        connection.execute(text(f"UPDATE summaries SET {extraction}, focus = 'é'"))  # noqa: S608  # ours
        assert connection.scalar(KEPT) == len('{"a":  1}{"a": "all"}[]') + 2
        connection.execute(text("DELETE FROM summaries"))
        connection.execute(ASKED)
        assert connection.scalar(KEPT) == there
        connection.execute(text("DELETE FROM summaries"))
        assert connection.scalar(KEPT) == 0


def test_compressed_bodies_are_stored_without_a_second_compression(engine: Engine) -> None:
    with engine.connect() as connection:
        found = connection.execute(
            text(
                "SELECT attrelid::regclass::text, attname, attstorage FROM pg_attribute"
                " WHERE attrelid IN ('texts'::regclass, 'results'::regclass, 'document_texts'::regclass)"
                " AND attname IN ('body', 'token_ids', 'output_ids')"
            )
        ).all()
    assert {(row[0], row[1]): row[2] for row in found} == {
        ("document_texts", "body"): "e",
        ("texts", "body"): "e",
        ("texts", "token_ids"): "e",
        ("results", "output_ids"): "e",
    }


def test_the_tree_of_a_summary_that_ended_before_is_counted(empty: Engine) -> None:
    schema.upgrade(empty, "0048")
    rows = (
        "INSERT INTO texts (id, tenant_id, sha256, body) SELECT id, id, 'a', '12345' FROM tenants",
        """INSERT INTO summaries (id, tenant_id, state, is_combined, style, length, on_gap, model, templates,
            root_job_id, plan, created_at, finalized_at)
        SELECT gen_random_uuid(), tenants.id, state, false, 'paragraph', 9, 'skip', 'm', '{}', tenants.id,
            '{"jobs": 2, "prompt_tokens": 12}', now(), ended_at
        FROM tenants, (VALUES ('completed', now()), ('running', NULL)) AS made(state, ended_at)""",
        """INSERT INTO jobs (id, tenant_id, text_id, state, task, model, prompt_tokens, completion_tokens,
            max_tokens, created_at, started_at, finalized_at, finish_reason, error, summary_id)
        SELECT gen_random_uuid(), tenant_id, tenant_id, made.state, 'summary_map', 'm', 5, 3, 9, now(), now(),
            now(), reason, CASE WHEN reason IS NULL THEN '{"code": "c"}'::jsonb END, summaries.id
        FROM summaries, (VALUES ('completed', 'stop'), ('failed', NULL)) AS made(state, reason)""",
        """INSERT INTO summary_nodes (summary_id, number, tenant_id, kind, level, parent, tokens, job_id)
        SELECT summary_id, row_number() OVER (PARTITION BY summary_id), tenant_id, 'reduce', 1,
            CASE state WHEN 'failed' THEN 9 END, 6, id FROM jobs""",
    )
    with empty.begin() as connection:
        for statement in rows:
            connection.execute(text(statement))
    schema.upgrade(empty)
    counts = text("""SELECT state, num_completed, num_failed, ended_tokens, used_prompt_tokens,
        used_cached_tokens, used_completion_tokens FROM summaries ORDER BY state""")
    with empty.begin() as connection:
        found = [tuple(row) for row in connection.execute(counts)]
    assert found == [("completed", 1, 1, 12, 10, 0, 6), ("running", None, 0, 0, 0, 0, 0)]


@pytest.mark.parametrize(
    ("asks", "before", "words"),
    [
        ("UPDATE jobs SET adapter = 'legal'", "0052", "an adapter"),
        ("INSERT INTO job_tensors SELECT id, tenant_id, text_id FROM jobs", "0054", "tensors of their own"),
    ],
)
def test_a_downgrade_waits_for_jobs_that_the_release_before_would_answer_wrongly(
    stored: Engine, asks: str, before: str, words: str
) -> None:
    schema.upgrade(stored)
    with stored.begin() as connection:
        connection.execute(text(asks))
    with pytest.raises(RuntimeError, match=f"1 unfinished jobs have {words}"):
        schema.downgrade(stored, before)
    with stored.begin() as connection:
        connection.execute(text("DELETE FROM jobs"))
    schema.downgrade(stored, before)
