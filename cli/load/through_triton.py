"""One request of a load test straight to an engine, through the adapter that a worker would use."""

import queue
import time
from typing import Final

import numpy as np

from cli.load.figures import LoadError, Timing
from cli.load.target import Target
from jobs.errors import LongbatchError
from jobs.ids import uuid7
from jobs.prompts.messages import Message
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSide
from jobs.states import FinishReason
from worker.engine.client import EngineClient
from worker.engine.deltas import EngineDelta, TextDelta, TokenDelta
from worker.engine.engine import StreamEnd
from worker.engine.request import Request, prompt_text
from worker.engine.stream import Stream

_SILENCE_SECONDS: Final = 600.0  # after which a request counts as failed


class TritonTarget(Target):
    """A model of an engine's server."""

    def __init__(self, side: EngineSide, *, max_tokens: int) -> None:
        """Find how to ask the model.

        Raises:
            EngineError: as for a worker, which would not start either.
            EngineUnavailableError: likewise.
        """
        # Streaming is on wherever possible: a load test measures times and ignores characters.
        triton = side.triton.model_copy(update={"streams_fragments": True})
        self._max_tokens = max_tokens
        # The capacity is not needed, so a server that does not report it is fine.
        client = EngineClient(triton, side.engine, end_id=0)
        try:
            self._served = client.served()
        finally:
            client.close()
        self.name = f"{self._served.name} at {side.engine.url or side.triton.url}"

    def ask(self, prompt: str, tokenizer: Tokenizer) -> Timing:
        """Send one request on a connection of its own, like a worker, and time it.

        The time to connect does not count.
        """
        ids = tokenizer.encode_messages([Message("user", prompt)])
        came: queue.SimpleQueue[tuple[float, EngineDelta | StreamEnd]] = queue.SimpleQueue()
        abilities = self._served.abilities
        try:
            text = "" if abilities.takes_ids else prompt_text(tokenizer, ids, adds_bos=abilities.adds_bos)
        except LongbatchError as error:
            raise LoadError(error.message) from error
        request = Request(
            uuid7().hex,
            np.asarray(ids),
            self._max_tokens,
            tokenizer.end_id,
            tokenizer.pad_id,
            text=text,
            vocabulary=tokenizer.token_bytes,
        )
        call = self._served.call(request)
        stream = Stream(call, put=lambda event: came.put((time.monotonic(), event)))
        stream.connect()
        began = time.monotonic()
        stream.start()
        try:
            return _timing(came, began, tokenizer, max_tokens=self._max_tokens)
        except queue.Empty as error:
            stream.stop()
            raise LoadError(f"no output for {_SILENCE_SECONDS:g} s") from error
        finally:
            stream.close()


def _timing(
    came: "queue.SimpleQueue[tuple[float, EngineDelta | StreamEnd]]",
    began: float,
    tokenizer: Tokenizer,
    *,
    max_tokens: int,
) -> Timing:
    first: float | None = None
    num_ids, num_reported, has_count, text = 0, 0, False, ""
    while True:
        at, event = came.get(timeout=_SILENCE_SECONDS)
        match event:
            case TokenDelta(ids):
                first, num_ids = first or at, num_ids + len(ids)
            case TextDelta():
                first = first or at
                text = event.text if event.is_whole else text + event.text
                if event.num_tokens is not None:
                    num_reported, has_count = num_reported + event.num_tokens, True
                elif event.reason is FinishReason.LENGTH and not has_count:
                    num_reported, has_count = max_tokens, True
            case StreamEnd(error):
                if error is not None:
                    raise LoadError(error.said or error.message)
                counted = num_ids or num_reported
                num_tokens = counted if counted or not text else tokenizer.count_text(text)
                return Timing((first or at) - began, at - began, num_tokens, has_count or bool(num_ids))
