"""A trace of when each request came, began and ended, for benchmarks; written only if a file is named."""

import json
import os
import time

from .requests import Request

VARIABLE = "LOCAL_ENGINE_TRACE"  # in the server's environment: path of the file to append to


class Trace:
    """A file of JSON lines: `[monotonic seconds, event, request id, prompt, limit, generated, lost, reused]`.

    The events are `came`, `began` (its first iteration starts) and `ended` (its slot is free, its final
    response is about to be sent). `lost` is the total time in seconds by which the loop lags the modelled
    GPU, `reused` the blocks of the prompt that the engine had.
    """

    def __init__(self, path: str) -> None:
        """Args: path: path of the file; empty writes nothing."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if path else None

    @classmethod
    def of_environment(cls) -> "Trace":
        """Create the trace that the environment names. Without one it writes nothing."""
        return cls(os.environ.get(VARIABLE, ""))

    def note(self, event: str, request: Request, *, lost: float = 0.0) -> None:
        """Write an event that happened now. Thread-safe: each line is written whole."""
        if self._file is None:
            return
        sequence = request.sequence
        line = [
            round(time.monotonic(), 6),
            event,
            request.request_id,
            sequence.prompt_tokens,
            sequence.max_tokens,
            sequence.num_generated,
            round(lost, 6),
            sequence.num_reused,
        ]
        os.write(self._file, f"{json.dumps(line)}\n".encode())
