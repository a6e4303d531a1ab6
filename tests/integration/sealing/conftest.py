"""Sessions that seal what they store, and ones that have another key."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from jobs import database
from jobs.sealing.content import ContentSealer
from jobs.settings import DatabaseSettings
from sealed.sealers import SEALS, SEALS_OTHERWISE, Connect


@pytest.fixture
def connect(
    sessions: sessionmaker[Session],  # noqa: ARG001  # without jobs
    database_settings: DatabaseSettings,
) -> Iterator[Connect]:
    """Sessions on the database, which has no jobs yet, with this sealer."""
    made: list[Engine] = []

    def connected(sealer: ContentSealer) -> sessionmaker[Session]:
        made.append(database.make_engine(database_settings, pool_size=4, sealer=sealer))
        return database.make_sessions(made[-1])

    yield connected
    for each in made:
        each.dispose()


@pytest.fixture
def sealed(connect: Connect) -> sessionmaker[Session]:
    """Sessions that seal."""
    return connect(SEALS)


@pytest.fixture
def otherwise(connect: Connect) -> sessionmaker[Session]:
    """Sessions that seal under a key that nobody else has."""
    return connect(SEALS_OTHERWISE)
