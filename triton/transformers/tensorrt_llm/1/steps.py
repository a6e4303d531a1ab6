"""A trace of what each step of the model did, for benchmarks; written only if a file is named."""

import json
import os
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

Processor: TypeAlias = Any  # transformers' ContinuousBatchProcessor

VARIABLE: Final = "TRANSFORMERS_ENGINE_STEPS"  # in the server's environment: path of the file to append to


class StepTrace:
    """A file of JSON lines: `[began, prepared, ended, prompt tokens read, prompts, answers, KV tokens]`.

    Times are monotonic seconds: choosing what runs begins, the model begins, its tokens are there. Then how
    many tokens of how many prompts the step read, how many answers got a further token, and the length of
    all these sequences. All of it runs in transformers' own thread.
    """

    def __init__(self, processor: Processor, path: str) -> None:
        """Args: processor: whose steps pass through here from now on; path: of the file."""
        self._processor = processor
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._prepare: Callable[[], bool] = processor.prepare_next_batch
        self._update: Callable[[], None] = processor.update_batch
        self._began = self._prepared = 0.0
        self._counts = (0, 0, 0, 0)
        processor.prepare_next_batch, processor.update_batch = self._preparing, self._updating

    @classmethod
    def of_environment(cls, processor: Processor) -> "StepTrace | None":
        """Create the trace that the environment names, if it names one."""
        path = os.environ.get(VARIABLE, "")
        return cls(processor, path) if path else None

    def _preparing(self) -> bool:
        self._began = time.monotonic()
        is_ready = self._prepare()
        if is_ready:
            self._prepared = time.monotonic()
            self._counts = self._count()
        return is_ready

    def _updating(self) -> None:
        self._update()
        times = (round(each, 6) for each in (self._began, self._prepared, time.monotonic()))
        os.write(self._file, f"{json.dumps([*times, *self._counts])}\n".encode())

    def _count(self) -> tuple[int, int, int, int]:
        batch = self._processor.inputs_and_outputs.requests_in_batch
        reading = [each.query_length for each in batch if not each.state.generated_tokens]
        held = sum(each.state.current_len() for each in batch)
        return sum(reading), len(reading), len(batch) - len(reading), held
