"""The interface of an engine: every kind implements it, and nothing above it knows the kind.

All of it is asyncio, on the one event loop of `loop`, where runs of jobs are coroutines. Code in threads uses
`client.EngineClient` and `stream.Stream`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from jobs.engines.capacity import Capacity
from jobs.engines.tensors import NOTHING_DECLARED, DeclaredTensors
from jobs.errors import EngineError, EngineUnableError, EngineUnavailableError, LongbatchError
from worker.engine.abilities import Abilities
from worker.engine.deltas import EngineDelta
from worker.engine.gauges import Gauges
from worker.engine.request import Request


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a stream; nothing follows it.

    Attributes:
        error: why the stream failed; None if the engine marked its last response as final.
        confirmed: the engine holds neither a slot nor blocks for the request.
    """

    error: EngineError | None
    confirmed: bool


NOT_SENT = StreamEnd(EngineUnavailableError(), confirmed=True)


class EngineCall(Protocol):
    """One request to an engine, on a connection of its own. Used on the engine loop alone."""

    async def connect(self) -> None:
        """Connect, waiting a few seconds at most. For measuring a request without its connection."""

    async def run(self, put: Callable[[EngineDelta], None], *, sent: Callable[[], None]) -> StreamEnd:
        """Send the request and pass on its deltas until its stream ends, however that happens.

        A request that was cancelled before is never sent.

        Args:
            put: receives every delta; it must not block.
            sent: called once the request is written.
        """

    def stop(self) -> None:
        """Ask the engine to end the request; the stream continues until it has ended.

        If no stop request can reach the engine, the stream is cut.
        """

    def cancel(self) -> None:
        """Cut the stream. The server ends the request when it notices."""

    async def close(self) -> None:
        """Cut the stream and close the connection once nothing is left on it that must not be cut."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as its server offers it. Two readings of an unchanged model are equal.

    Attributes:
        kind: the kind of engine.
        name: the model's name at the server.
        root: the model behind its aliases; empty if the server lists none.
        abilities: what the engine can do.
        tensors: what it declares by name, as far as a request may name it.
        prepare: prepares a request without sending it; raises EngineError if a value cannot be sent.
    """

    kind: str
    name: str
    abilities: Abilities
    prepare: Callable[[Request], EngineCall] = field(compare=False, repr=False)
    tensors: DeclaredTensors = NOTHING_DECLARED
    root: str = ""

    def call(self, request: Request) -> EngineCall:
        """Prepare a request without sending it.

        Raises:
            EngineUnableError: it needs what the engine does not take, or names what it does not declare.
            EngineError: a value cannot be sent.
        """
        if lacking := request.needed & self.abilities.lacks:
            raise EngineUnableError(self._refusal(request, lacking))
        try:
            request.tensors.check(self.tensors, self.name)
        except LongbatchError as error:
            raise EngineUnableError(error.message) from error
        return self.prepare(replace(self._placed(request), may_reuse=self.abilities.reuses_prefix))

    def _placed(self, request: Request) -> Request:
        """Find the request's adapter among those that the engine was started with, if it has only those."""
        wanted, held = request.adapter, self.abilities.adapters
        if wanted is None or held is None:
            return request
        if wanted.name not in held:
            listed = ", ".join(held)
            message = (
                f"The engine of the model {self.name!r} was not started with the adapter {wanted.name!r}"
            )
            raise EngineUnableError(f"{message}; it has {listed}.")
        return replace(request, adapter=replace(wanted, place=held.index(wanted.name)))

    def _refusal(self, request: Request, lacking: frozenset[str]) -> str:
        listed = " and ".join(sorted(lacking))
        advice = f"leave {listed} out"
        if lacking == {"top_p"} and request.sampling.top_p is None:
            advice = "it always picks the most likely token, so set temperature to 0"
        return (
            f"The engine of the model {self.name!r}, of the kind {self.kind}, does not take {listed}:"
            f" {advice}. It takes {', '.join(sorted(self.abilities.takes))}."
        )


class EngineServer(Protocol):
    """A server with one engine. Its coroutines run on the engine loop.

    `model` and `capacity` raise EngineUnavailableError if the server cannot be reached or has no such model
    yet (try again later), and EngineError if this worker cannot feed it (an operator must change something).
    """

    async def is_ready(self) -> bool:
        """Return True if the server reports that it can serve the model."""

    async def model(self) -> ServedModel:
        """Read what the server offers."""

    async def gauges(self) -> Gauges | None:
        """Read the engine's gauges. Returns None if there are none."""

    async def capacity(self, gauges: Gauges) -> Capacity:
        """Combine the settings, then the gauges, then what else the server reports of its capacity."""

    async def close(self) -> None:
        """Close the connection."""
