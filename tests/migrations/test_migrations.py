from alembic import command
from sqlalchemy import Engine, inspect, text

from jobs.database import schema


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


def test_what_was_stored_before_is_counted_once_even_if_the_upgrade_died(empty: Engine) -> None:
    schema.upgrade(empty, "0028")
    tenant_id = "00000000-0000-7000-8000-000000000001"
    rows = (
        "INSERT INTO texts (id, tenant_id, sha256, body) SELECT id, id, 'a', '12345' FROM tenants",
        """INSERT INTO jobs
        (id, tenant_id, text_id, state, task, model, prompt_tokens, max_tokens, created_at)
        SELECT id, tenant_id, id, 'queued', 'generate', 'm', 1, 1, now() FROM texts""",
        "INSERT INTO results (job_id, output, output_ids) SELECT id, '123', '4' FROM jobs",
    )
    kept = text("SELECT (SELECT coalesce(sum(num_bytes), 0) FROM stored_notes WHERE tenant_id = :id)")
    with empty.begin() as connection:
        for statement in rows:
            connection.execute(text(statement))
    for _ in range(2):
        schema.upgrade(empty)
        with empty.begin() as connection:
            assert connection.scalar(kept, {"id": tenant_id}) == 9
            connection.execute(text("UPDATE alembic_version SET version_num = '0028'"))
    schema.upgrade(empty)
    with empty.begin() as connection:
        connection.execute(text("UPDATE texts SET token_ids = '67'"))
        assert connection.scalar(kept, {"id": tenant_id}) == 11
        connection.execute(text("DELETE FROM jobs"))
        connection.execute(text("DELETE FROM texts"))
        assert connection.scalar(kept, {"id": tenant_id}) == 0


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
