"""One running stack for the whole folder: every process as a user runs it, on random ports."""

import os
from collections.abc import Iterator

import pytest

from cli.stack.engine_options import EngineOptions
from cli.stack.options import StackOptions
from cli.stack.ports import free_port
from cli.stack.stack import Stack
from jobs.tokenizer_files import tokenizer_directory
from system_support import TIME_SCALE, Client


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that notices lost workers within seconds; chaos in one module never reaches another.

    A module chooses its engine by the names ENGINE_MODE and TIME_SCALE.
    """
    options = StackOptions(
        directory=tmp_path_factory.mktemp("stack"),
        api_port=free_port(),
        engine=EngineOptions(
            mode=getattr(request.module, "ENGINE_MODE", "extractive"),
            tokenizer_dir=tokenizer_directory(None),
            time_scale=getattr(request.module, "TIME_SCALE", TIME_SCALE),
        ),
        environment={
            **os.environ,
            "LONGBATCH_JOBS__LEASE_SECONDS": "6",
            "LONGBATCH_JOBS__RENEW_SECONDS": "1",
            "LONGBATCH_MAINTENANCE__RESCUE_SECONDS": "0.5",
        },
    )
    made = Stack(options)
    made.start()
    yield made
    made.stop()
    made.remove_data()


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.urls) as made:
        yield made
