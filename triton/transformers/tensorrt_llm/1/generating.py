"""The process that generates: `python -m 1.generating`, in the model's folder, started by `remote.py`.

It is none of Triton's: their stub runs Python from a shared library, slower than the interpreter itself, and
what it does for each response would hold up the thread that feeds the GPU. A fault on the GPU, too, ends only
this process, and a new one begins afresh.
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
_LEAVE_PERIOD = 0.005  # seconds between looks at whether cancelled sequences have left
_ALIVE_PERIOD = 0.5  # seconds between looks at whether transformers' thread still runs


@dataclass(frozen=True)
class _Leave:
    """The sequence was cancelled, and is told of when it is gone."""

    name: str


class Generating:
    """Commands in, tokens out; both as lists of tuples."""

    def __init__(self, parameters: Parameters, commands: Connection, answers: Connection) -> None:
        self._generator = Generator(parameters)
        self._commands = commands
        self._answers = answers
        self._told: dict[str, int] = {}
        self._leaving: set[str] = set()

    def run(self) -> None:
        """The parent has gone, or nothing can be generated any more."""
        self._answers.send([("ready", self._generator.vocabulary, self._generator.max_positions)])
        threading.Thread(target=self._obey, name="commands", daemon=True).start()
        while self._generator.is_alive:
            said = [answer for output in self._outputs() if (answer := self._tell(output)) is not None]
            gone = {name for name in self._leaving if not self._generator.holds(name)}
            self._leaving -= gone
            if said or gone:
                self._answers.send([*said, *(("gone", name) for name in gone)])

    def _outputs(self) -> list[Any]:
        """What came since the last look, waited for a while; a step of the GPU brings several."""
        outputs = self._generator.outputs
        found = []
        try:
            found.append(outputs.get(timeout=_LEAVE_PERIOD if self._leaving else _ALIVE_PERIOD))
            while True:
                found.append(outputs.get_nowait())
        except queue.Empty:
            return found

    def _tell(self, output: Any) -> tuple[Any, ...] | None:  # noqa: ANN401  transformers' output, or a `_Leave`
        if isinstance(output, _Leave):
            self._leaving.add(output.name)
            self._told.pop(output.name, None)
            return None
        name = output.request_id
        if name in self._leaving:
            return None
        tokens = output.generated_tokens[self._told.get(name, 0) :]
        self._told[name] = len(output.generated_tokens)
        if output.error is not None or output.is_finished():
            del self._told[name]
        return "said", name, tokens, output.error

    def _obey(self) -> None:
        """Commands are carried out as they come; without the parent this process ends at once."""
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
    """Args: the file descriptors of commands and answers; the first command holds the parameters."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    commands, answers = (Connection(int(each)) for each in sys.argv[1:])
    parameters = Parameters(*commands.recv())
    try:
        Generating(parameters, commands, answers).run()
        answers.send([("failed", "the generation has ended")])
    except Exception as error:  # noqa: BLE001 the entry point: the parent is to know
        answers.send([("failed", repr(error))])
    finally:
        os._exit(1)  # transformers' thread may hang on a broken device


if __name__ == "__main__":
    main()
