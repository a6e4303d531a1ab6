"""The suite of entry points over the transformers engine, with a model whose answers are known beforehand."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.stack.servers.transformers_options import TransformersOptions
from entry_point_suite import *  # noqa: F403  all of its tests
from entry_points import Mortal, Served
from jobs.prompts.tokenizer import Tokenizer
from local_engine import KillableEngine, RunningEngine, running_engine
from scripted_model import POSITIONS, ScriptedModel
from support import eventually
from torch_support import generating_process

pytestmark = pytest.mark.timeout(300)  # the long prompt takes a minute without a GPU

MODEL = "tensorrt_llm"


@pytest.fixture(scope="module")
def script(tokenizer: Tokenizer) -> ScriptedModel:
    return ScriptedModel(tokenizer)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory, script: ScriptedModel) -> TransformersOptions:
    return TransformersOptions(
        model_dir=script.save(tmp_path_factory.mktemp("scripted")),
        device="cpu",
        dtype="float32",
        sampling=False,
        max_seq_len=POSITIONS,
        max_num_tokens=1024,
    )


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, options: TransformersOptions
) -> Iterator[RunningEngine]:
    with running_engine(tmp_path_factory.mktemp("engine"), options) as engine:
        yield engine


@pytest.fixture
def served(running: RunningEngine, tokenizer: Tokenizer, script: ScriptedModel) -> Served:
    def strike() -> None:
        os.kill(generating_process(running), signal.SIGKILL)

    found = Served.on(running, MODEL, tokenizer, says=script.says, strike=strike)
    eventually(found.is_idle)
    return found


@pytest.fixture
def failing(served: Served) -> Served:
    """It fails when the process dies that holds its model."""
    return served


@pytest.fixture
def mortal(
    tmp_path: Path, options: TransformersOptions, tokenizer: Tokenizer, script: ScriptedModel
) -> Iterator[Mortal]:
    server = KillableEngine(tmp_path, options)
    yield Mortal(
        server, lambda: [Served.on(server.engine, MODEL, tokenizer, says=script.says) for _ in range(2)]
    )
    server.kill()
