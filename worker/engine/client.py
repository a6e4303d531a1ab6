"""The client of an engine as a thread sees it: readiness, capacity, and whether it really answers."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

import numpy as np

from jobs.engines.capacity import Capacity
from jobs.errors import EngineError, EngineUnavailableError
from jobs.ids import uuid7
from jobs.settings import EngineSettings, TritonSettings
from worker.engine import loop
from worker.engine.engine import EngineCall, EngineServer, ServedModel
from worker.engine.gauges import Gauges
from worker.engine.kinds import connect
from worker.engine.request import Request

CANARY_SECONDS: Final = 15.0
_CANARY: Final = "Say yes."  # for a model that takes text


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A model with the capacity of its engine.

    Attributes:
        served: the model as the live server offers it.
        capacity: slots, blocks and lengths, with the settings' overrides.
    """

    served: ServedModel
    capacity: Capacity


class EngineClient:
    """A client that queries the engine on a connection without jobs. Used by one thread.

    Other threads may call only `interrupt`.
    """

    def __init__(self, triton: TritonSettings, engine: EngineSettings, *, end_id: int) -> None:
        """Args: engine: overrides; end_id: the tokenizer's end token, the whole prompt of a probe."""
        self.engine: EngineServer = connect(triton, engine)
        self._end_id = end_id
        self._needs_gauges = not (engine.max_blocks and engine.tokens_per_block)
        self._shown: Gauges | None = None
        self._poolless: ServedModel | None = None  # its gauges show no pool even after an answer
        self._canary: EngineCall | None = None
        self._is_interrupted = False

    def interrupt(self) -> None:
        """Stop waiting for the answer to a probe, now and in the future."""
        self._is_interrupted = True
        loop.call(self._cancel_canary)

    @property
    def is_interrupted(self) -> bool:
        """True once `interrupt` was called."""
        return self._is_interrupted

    def close(self) -> None:
        """Close the connection."""
        loop.run(self.engine.close())

    def is_ready(self) -> bool:
        """Return True if the server reports that it can serve the model."""
        return loop.run(self.engine.is_ready())

    def gauges(self) -> Gauges | None:
        """Read the engine's gauges. Returns None if there are none."""
        return loop.run(self.engine.gauges())

    def served(self) -> ServedModel:
        """Read what the server offers, whatever its capacity.

        Raises:
            EngineUnavailableError: the server cannot be reached or has no such model yet; try again later.
            EngineError: this worker cannot feed the model; an operator must change it.
        """
        return loop.run(self.engine.model())

    def describe(self) -> EngineModel:
        """Read what the server offers and its capacity.

        Raises:
            EngineUnavailableError: the server cannot be reached or has no such model yet; try again later.
            EngineError: this worker cannot feed the model; an operator must change it.
        """
        return loop.run(self._describe())

    def answers(self, served: ServedModel, *, timeout: float) -> bool:
        """Return True if the engine really generates a token for a one-token prompt; see `try_answer`."""
        return self.try_answer(served, timeout=timeout) is None

    def try_answer(self, served: ServedModel, *, timeout: float) -> EngineError | None:
        """Let the engine generate a token for a one-token prompt.

        Args:
            served: the model.
            timeout: the longest wait for the end of its answer, in seconds.

        Returns:
            Why it did not; None if it did.
        """
        return loop.run(self._try_answer(served, seconds=timeout))

    async def _describe(self) -> EngineModel:
        served = await self.engine.model()
        return EngineModel(served, await self.engine.capacity(await self._shown_gauges(served)))

    async def _shown_gauges(self, served: ServedModel) -> Gauges:
        """Read gauges that show the pool's size, or return the last such ones, or zeros.

        A real engine fills them in at its first iteration, which a probe triggers. One that shows none after
        an answer never will.
        """
        gauges = await self.engine.gauges()
        if gauges is not None and gauges.max_blocks == 0 and self._needs_gauges and self._poolless != served:
            error = await self._try_answer(served, seconds=CANARY_SECONDS)
            gauges = await self.engine.gauges()
            if error is None and gauges is not None and gauges.max_blocks == 0:
                self._poolless = served
        if gauges is not None and gauges.max_blocks:
            self._shown = gauges
        return self._shown or gauges or Gauges()

    async def _try_answer(self, served: ServedModel, *, seconds: float) -> EngineError | None:
        request = Request(
            request_id=uuid7().hex,
            ids=np.array([self._end_id], dtype=np.int32),
            max_tokens=1,
            end_id=self._end_id,
            pad_id=self._end_id,
            text=_CANARY,
            is_embedding=not served.abilities.is_generating,
        )
        self._canary = call = served.call(request)
        if self._is_interrupted:
            call.cancel()
        try:
            async with asyncio.timeout(seconds):
                end = await call.run(lambda _: None, sent=lambda: None)
        except TimeoutError:
            return EngineUnavailableError(f"no token came within {seconds:g} s")
        finally:
            self._canary = None
            with contextlib.suppress(TimeoutError):
                await call.close()
        return end.error

    def _cancel_canary(self) -> None:
        if self._canary is not None:
            self._canary.cancel()
