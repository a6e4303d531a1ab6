from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import make_url

from jobs import database
from jobs.settings import DatabaseSettings


@pytest.fixture
def empty(engine: Engine, database_settings: DatabaseSettings) -> Iterator[Engine]:
    """Connections to a database of this test's own."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CREATE DATABASE migrations"))
    url = make_url(database_settings.url.get_secret_value()).set(database="migrations")
    made = database.make_engine(DatabaseSettings(url=url.render_as_string(hide_password=False)))
    yield made
    made.dispose()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("DROP DATABASE migrations"))
