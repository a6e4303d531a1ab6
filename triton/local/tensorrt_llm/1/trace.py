"""When each request came, began and ended: what benchmarks read, written only where a file is named."""

import json
import os
import time

from .requests import Request

VARIABLE = "LOCAL_ENGINE_TRACE"  # in the server's environment: the file, appended to


class Trace:
    """Lines of JSON: `[monotonic seconds, event, request id, prompt, limit, generated, lost seconds]`.

    The events are `came`, `began` (its first iteration starts), `ended` (its slot is free, its final
    response is about to leave). `lost` is how far, in all, the loop has fallen behind the modelled GPU.
    """

    def __init__(self, path: str) -> None:
        """Args: path: of the file; empty writes nothing."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if path else None

    @classmethod
    def of_environment(cls) -> "Trace":
        """Into the file that the environment names, if it does."""
        return cls(os.environ.get(VARIABLE, ""))

    def note(self, event: str, request: Request, *, lost: float = 0.0) -> None:
        """It happened now; for any thread, a line is written whole."""
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
        ]
        os.write(self._file, f"{json.dumps(line)}\n".encode())
