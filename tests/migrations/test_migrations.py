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
