"""vLLM on the CPU over a model whose answers are known beforehand: an engine that nobody here wrote."""

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.prompts.tokenizer import Tokenizer
from worker_support import Queue


@pytest.fixture
def queue(sessions: sessionmaker[Session], tokenizer: Tokenizer) -> Queue:
    """An empty queue as its callers see it."""
    return Queue(sessions, tokenizer)
