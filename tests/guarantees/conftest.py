"""One running product for the suite, met from outside alone; see docs/guarantees.md."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Protocol

import pytest

from rig import processes
from rig import world as worlds
from rig.audit import audit
from rig.world import Caller, FedEngine, World

# A database of the broker that no other test uses.
_BROKER_DATABASE = "7"


class Server(Protocol):
    """A server that the fixtures of all tests have started."""

    @property
    def url(self) -> str: ...


@pytest.fixture(scope="package")
def _forked(fork_program: Callable[..., Any]) -> Iterator[None]:
    """Processes are forked where another fixture can, which saves seconds of CPU for each."""
    start = processes.start_process

    def fork_or_start(arguments: Sequence[str], environment: Mapping[str, str], *, log: IO[bytes]) -> object:
        forked = fork_program(tuple(arguments), env=environment, cwd=processes.REPOSITORY, stdout=log)
        return forked or start(arguments, environment, log=log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "start_process", fork_or_start)
        yield


@pytest.fixture(scope="package")
def shared_world(
    postgres: Server,
    valkey: Server,
    tmp_path_factory: pytest.TempPathFactory,
    _forked: None,
) -> Iterator[World]:
    """The product; it ends after the last of these tests, so that it meets no other test."""
    broker = valkey.url.rpartition("/")[0] + f"/{_BROKER_DATABASE}"
    with worlds.running(postgres.url, broker, tmp_path_factory.mktemp("guarantees")) as made:
        yield made


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    """The product at rest, audited after the test."""
    shared_world.at_rest()
    yield shared_world
    shared_world.engine.scripted.release_all()
    shared_world.engine.feed()
    audit(shared_world)


@pytest.fixture
def caller(world: World) -> Caller:
    return world.caller


@pytest.fixture
def engine(world: World) -> FedEngine:
    """The shared engine, which a worker feeds."""
    world.engine.feed()
    return world.engine


@pytest.fixture
def fed(world: World) -> Iterator[Callable[[str], FedEngine]]:
    """Makes an engine of a kind, fed by a worker of its own, and audits it after the test."""
    made: list[FedEngine] = []

    def make(kind: str) -> FedEngine:
        each = world.add_engine(kind)
        made.append(each)
        each.feed()
        return each

    yield make
    for each in made:
        each.scripted.release_all()
    audit(world, *made)
    for each in made:
        assert each.worker is not None
        each.worker.stop()
