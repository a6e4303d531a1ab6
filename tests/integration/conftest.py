"""What tests of the service and of workers share: each server is started once for all of a module."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import httpx2
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from api_server import WEBHOOK_SECRET, ApiProcess, Serve, serving
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.valkey import EmbeddedValkey
from jobs.prompts.tokenizer import Tokenizer, ensure_default_tokenizer
from jobs.settings import DatabaseSettings, Settings
from jobs.transitions import Lease
from local_engine import RunningEngine, running_engine
from support import claim_one, eventually, register_engine, submit_one
from webhook_support import WEBHOOKS, Receiver, receiving
from worker_support import TIME_SCALE, Queue, settings_for


@pytest.fixture(scope="session")
def serve(
    engine: Engine,  # noqa: ARG001  # the database is migrated
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
) -> Serve:
    """Start a service with these variables."""
    return partial(serving, database_settings, valkey.url)


@pytest.fixture(scope="session")
def server(serve: Serve) -> Iterator[ApiProcess]:
    assert WEBHOOKS.encryption_key is not None
    key = WEBHOOKS.encryption_key.get_secret_value()
    variables = {
        "LONGBATCH_WEBHOOKS__SECRET": WEBHOOK_SECRET,
        "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY": key,
        "LONGBATCH_API__MAX_STREAMS": "1000",
        # Or one test could leave the others of the next minute none.
        "LONGBATCH_LIMITS__MAX_REQUESTS": "1000000",
        # Or a request would be checked against the engines of the test before.
        "LONGBATCH_API__ENGINE_CACHE_SECONDS": "0",
    }
    with serve(**variables) as process:
        yield process


@pytest.fixture
def http(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[httpx2.Client]:  # noqa: ARG001  # without jobs
    """A client of the service, whose database holds no jobs."""
    with server.client() as client:
        yield client


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of webhooks that answers as it is told."""
    with receiving() as made:
        yield made


@pytest.fixture
def running(sessions: sessionmaker[Session]) -> Lease:
    """A job that runs."""
    with sessions.begin() as session:
        register_engine(session)
        submit_one(session)
        return claim_one(session).lease


@pytest.fixture
def background() -> Iterator[Callable[..., Future[object]]]:
    """Runs a function beside the test."""
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


@pytest.fixture
def queue(sessions: sessionmaker[Session], tokenizer: Tokenizer) -> Queue:
    """An empty queue as its callers see it."""
    return Queue(sessions, tokenizer)


@pytest.fixture(scope="session")
def synthetic_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """A local engine that says as much as it is asked for; no test stops it."""
    options = EngineOptions(mode="synthetic", tokenizer_dir=ensure_default_tokenizer(), time_scale=TIME_SCALE)
    with running_engine(tmp_path_factory.mktemp("engine"), options) as engine:
        yield engine


@pytest.fixture(scope="module")
def synthetic(synthetic_server: RunningEngine) -> RunningEngine:
    """The engine that says as much as it is asked for; nothing runs on it when a module begins."""
    eventually(lambda: synthetic_server.gauges()["active"] == 0)
    return synthetic_server


@pytest.fixture
def feeding(
    database_settings: DatabaseSettings, valkey: EmbeddedValkey, synthetic: RunningEngine
) -> Callable[..., Settings]:
    """The settings of a worker that feeds this engine."""
    return partial(settings_for, database_settings, valkey.url, synthetic)
