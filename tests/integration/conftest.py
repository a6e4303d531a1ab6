"""The service, started once for all tests that speak HTTP to it."""

from collections.abc import Iterator

import httpx2
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from api_server import WEBHOOK_SECRET, ApiProcess
from cli.stack.valkey import EmbeddedValkey
from jobs.settings import DatabaseSettings
from jobs.tokens import Tokenizer
from support import eventually
from worker_support import Queue


@pytest.fixture(scope="session")
def server(
    engine: Engine,  # noqa: ARG001  # the database is migrated
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
) -> Iterator[ApiProcess]:
    process = ApiProcess(database_settings, valkey.url, LONGBATCH_WEBHOOKS__SECRET=WEBHOOK_SECRET)
    with process.client() as client:
        eventually(lambda: client.get("/health/ready").json()["components"]["tokenizer"]["ready"])
    yield process
    assert process.stop() == 0


@pytest.fixture
def http(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[httpx2.Client]:  # noqa: ARG001  # without jobs
    """A client of the service, whose database holds no jobs."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load()


@pytest.fixture
def queue(sessions: sessionmaker[Session], tokenizer: Tokenizer) -> Queue:
    """An empty queue as its callers see it."""
    return Queue(sessions, tokenizer)
