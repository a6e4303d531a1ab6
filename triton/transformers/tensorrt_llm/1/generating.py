"""The process that generates: `python -m 1.generating`, in the model's folder, started by `remote.py`.

It runs outside Triton's stub, which runs Python from a shared library, slower than the interpreter itself,
and whose work for each response would delay the thread that feeds the GPU. A GPU fault, too, ends only this
process, and a new one starts over.
"""

import ctypes
import os
import queue
import signal
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from .generator import Generator
from .parameters import Parameters
from .sampling import Sampling

_PR_SET_PDEATHSIG = 1
_LEAVE_PERIOD = 0.005  # seconds between checks for cancelled sequences that have left
_ALIVE_PERIOD = 0.5  # seconds between checks that transformers' thread still runs


@dataclass(frozen=True)
class _Leave:
    """A cancelled sequence, to be reported once it holds no block."""

    name: str


class Generating:
    """The generating process: commands in, tokens out, as tuples."""

    def __init__(self, parameters: Parameters, commands: Connection, answers: Connection) -> None:
        self._generator = Generator(parameters)
        self._commands = commands
        self._answers = answers
        self._num_sent: dict[str, int] = {}
        self._leaving: set[str] = set()
        self._num_used: int | None = None

    def run(self) -> None:
        """Generate until the parent ends or the generator fails."""
        self._answers.send([("ready", self._generator.vocabulary, self._generator.max_positions)])
        threading.Thread(target=self._obey, name="commands", daemon=True).start()
        while self._generator.is_alive:
            answers = [
                answer for output in self._outputs() if (answer := self._answer_of(output)) is not None
            ]
            left = {name for name in self._leaving if not self._generator.holds(name)}
            self._leaving -= left
            if answers or left:
                self._answers.send([*self._used(), *answers, *(("gone", name) for name in left)])

    def _used(self) -> list[tuple[Any, ...]]:
        """Tell how many blocks are in use if that has changed, before the ends that may have changed it."""
        before, self._num_used = self._num_used, self._generator.num_used
        return [] if self._num_used == before else [("used", self._num_used)]

    def _outputs(self) -> list[Any]:
        """Wait a while for new outputs and return them all. A step of the GPU brings several."""
        outputs = self._generator.outputs
        found = []
        try:
            found.append(outputs.get(timeout=_LEAVE_PERIOD if self._leaving else _ALIVE_PERIOD))
            while True:
                found.append(outputs.get_nowait())
        except queue.Empty:
            return found

    def _answer_of(self, output: Any) -> tuple[Any, ...] | None:  # noqa: ANN401  transformers' output, or a `_Leave`
        if isinstance(output, _Leave):
            self._leaving.add(output.name)
            self._num_sent.pop(output.name, None)
            self._generator.num_cached(output.name)
            return None
        name = output.request_id
        if name in self._leaving:
            return None
        num_cached = 0 if name in self._num_sent else self._generator.num_cached(name)
        tokens = output.generated_tokens[self._num_sent.get(name, 0) :]
        self._num_sent[name] = len(output.generated_tokens)
        if output.error is not None or output.is_finished():
            del self._num_sent[name]
        return "said", name, tokens, output.error, num_cached

    def _obey(self) -> None:
        """Carry out commands as they come. When the parent ends, exit at once."""
        try:
            while True:
                name, *rest = self._commands.recv()
                if rest:
                    self._begin(name, *rest)
                else:
                    self._generator.cancel(name)
                    self._generator.outputs.put(_Leave(name))
        except (EOFError, OSError):
            os._exit(0)

    def _begin(
        self, name: str, ids: list[int], max_tokens: int, end_id: int, picking: tuple[Any, ...]
    ) -> None:
        self._generator.begin(name, ids, max_tokens=max_tokens, end_id=end_id, sampling=Sampling(*picking))


def main() -> None:
    """Generate until the parent ends.

    Args: the file descriptors of commands and answers; the first command holds the parameters.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    commands, answers = (Connection(int(each)) for each in sys.argv[1:])
    parameters = Parameters(*commands.recv())
    try:
        Generating(parameters, commands, answers).run()
        answers.send([("failed", "the generation has ended")])
    except Exception as error:  # noqa: BLE001 the entry point: the parent must learn of it
        answers.send([("failed", repr(error))])
    finally:
        os._exit(1)  # transformers' thread may hang on a broken device


if __name__ == "__main__":
    main()
