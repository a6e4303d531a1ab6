"""Transformers engines on real Triton servers, over a tiny random model that is made here."""

import os
from collections.abc import Iterator

import pytest

from local_engine import RunningEngine, running_engine
from torch_support import Reference, options, tiny_model

# Of the engines' processes, which inherit it: threads that wait for each other on busy cores make 10 tokens a
# second of 100. A test that waits in vain for its answer leaves it in the engine, and the next find it busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory, model: Reference) -> Iterator[RunningEngine]:
    """Nothing runs on it when a test begins."""
    with running_engine(tmp_path_factory.mktemp("engine"), options(model)) as running:
        yield running
