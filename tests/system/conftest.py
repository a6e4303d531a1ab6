"""Running stacks: every process as a user runs it, on random ports, for one module after another."""

import os
from collections.abc import Iterator
from types import ModuleType

import pytest

import ready_cluster
from cli.stack.options import StackOptions
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf
from cli.stack.stack import Stack
from jobs.prompts.tokenizer_files import tokenizer_directory
from system_support import AT_ONCE, OF_TESTS, TIME_SCALE, TRACE, Client, Gauges, trace_of

Engine = tuple[str, float]  # its mode and its time scale


class Stacks:
    """The stack that runs; modules that ask for the same engine use it one after another."""

    def __init__(self, directories: pytest.TempPathFactory) -> None:
        self._directories = directories
        self._running: tuple[Engine, Stack] | None = None

    def running(self, engine: Engine) -> Stack:
        """Give the stack with this engine; another one stops first."""
        if self._running is not None and self._running[0] == engine:
            return self._running[1]
        self.stop()
        stack = Stack(_options(engine, self._directories), backoff=AT_ONCE)
        os.environ[TRACE] = str(trace_of(stack))  # also for an engine that starts again
        with ready_cluster.copied():
            stack.start()
        self._running = (engine, stack)
        return stack

    def stop(self) -> None:
        """Stop the stack that runs, if one does."""
        if self._running is not None:
            _, stack = self._running
            self._running = None
            stack.stop()
            stack.remove_data()
            os.environ.pop(TRACE, None)


def _options(engine: Engine, directories: pytest.TempPathFactory) -> StackOptions:
    """Make those of a stack that notices lost workers within seconds and tells receivers on this machine."""
    inherited = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
    return StackOptions(
        directory=directories.mktemp("stack"),
        api_port=0,
        engine=_engine_options(engine),
        environment={
            **inherited,
            "LONGBATCH_JOBS__LEASE_SECONDS": "6",
            "LONGBATCH_JOBS__RENEW_SECONDS": "1",
            "LONGBATCH_MAINTENANCE__RESCUE_SECONDS": "0.5",
        },
    )


def _engine_options(engine: Engine) -> EngineOptions | LlamaOptions:
    """Make those of the local engine, or of llama.cpp with a real model: a mode of this name."""
    mode, time_scale = engine
    if mode == "llama":
        return LlamaOptions(gguf=bundled_gguf(), context=2048, slots=2, threads=1)
    return EngineOptions(
        mode=mode,  # type: ignore[arg-type]  # one of its modes
        tokenizer_dir=tokenizer_directory(None),
        time_scale=time_scale,
    )


def _engine(module: ModuleType) -> Engine:
    """Read which engine a module asks for: ENGINE_MODE and TIME_SCALE, where it names them."""
    return getattr(module, "ENGINE_MODE", "extractive"), getattr(module, "TIME_SCALE", TIME_SCALE)


def _goes_on(module: ModuleType, nextitem: object) -> bool:
    """Whether the next test uses the stack of this module, which may have KILLED parts of it."""
    if not isinstance(nextitem, pytest.Function) or "stacks" not in nextitem.fixturenames:
        return False
    is_safe = getattr(nextitem.module, "KILLS", False) or not getattr(module, "KILLS", False)
    return is_safe and _engine(nextitem.module) == _engine(module)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Stop the stack after its last module: the chaos of one that KILLS reaches only others that do."""
    yield
    if isinstance(item, pytest.Function) and "stacks" in item.fixturenames:
        is_last = nextitem is None or nextitem.path != item.path
        if is_last and not _goes_on(item.module, nextitem):
            item.config.stash[_STACKS].stop()


_STACKS = pytest.StashKey[Stacks]()


@pytest.fixture(scope="session")
def stacks(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Stacks]:
    made = pytestconfig.stash[_STACKS] = Stacks(tmp_path_factory)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def stack(request: pytest.FixtureRequest, stacks: Stacks) -> Stack:
    return stacks.running(_engine(request.module))


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.urls) as made:
        yield made


@pytest.fixture
def gauges(stack: Stack) -> Gauges:
    assert stack.urls.triton_metrics is not None
    return Gauges(stack.urls.triton_metrics)
