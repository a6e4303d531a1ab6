"""SGLang's own HTTP server, tokenizer manager and detokenizer, whose scheduler has no model."""

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.prompts.tokenizer import Tokenizer
from sglang_server import SglangServer
from worker_support import Queue


@pytest.fixture
def queue(sessions: sessionmaker[Session], tokenizer: Tokenizer) -> Queue:
    """An empty queue as its callers see it."""
    return Queue(sessions, tokenizer)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[SglangServer]:
    """A server with the options that a newcomer gives it, whose events repeat the answer."""
    made = SglangServer(tmp_path_factory.mktemp("plain"), tokenizer).start()
    yield made
    made.kill()
