"""The generating process as its parent, Triton's stub, sees it."""

import os
import queue
import shutil
import subprocess
import threading
from contextlib import suppress
from dataclasses import astuple, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from .parameters import Parameters
from .sampling import Sampling

_GRACE = 5.0  # seconds to end after the pipe was closed


@dataclass(frozen=True)
class Said:
    """Tokens of a sequence; with an `error` they are its last."""

    name: str
    tokens: list[int]
    error: str | None


@dataclass(frozen=True)
class Gone:
    """A cancelled sequence holds no block any more."""

    name: str


@dataclass(frozen=True)
class Died:
    """Nothing is generated any more, and all that ran is lost."""

    reason: str


class RemoteGenerator:
    """Starts the process and speaks to it; not safe for several threads, but for `events`.

    `events` brings `Said`, `Gone` and `Died` in their order, and whatever else was put there.
    """

    def __init__(self, parameters: Parameters) -> None:
        """The process runs and its model has answered once.

        Raises:
            RuntimeError: it does not, for the reason in the message.
        """
        self.events: queue.Queue[object] = queue.Queue()
        self._parameters = parameters
        self._start()

    def begin(self, name: str, ids: list[int], *, max_tokens: int, end_id: int, sampling: Sampling) -> None:
        """The sequence takes part from the next iteration on."""
        self._send((name, ids, max_tokens, end_id, astuple(sampling)))

    def cancel(self, name: str) -> None:
        """The sequence leaves at the next iteration boundary; `Gone` says when it has."""
        self._send((name,))

    def restart(self) -> None:
        """A new process runs, which knows no sequence.

        Raises:
            RuntimeError: it does not.
        """
        self.close()
        self._start()

    def close(self) -> None:
        """The process has ended."""
        self._commands.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        (commands_in, commands_out), (answers_in, answers_out) = os.pipe(), os.pipe()
        folder = Path(__file__).resolve().parent
        # The interpreter itself, not the library that the stub holds; the stub found its packages by it.
        command = [shutil.which("python3") or "python3", "-m", f"{folder.name}.generating"]
        self._process = subprocess.Popen(
            [*command, str(commands_in), str(answers_out)],
            cwd=folder.parent,
            env={**os.environ, "PYTHONPATH": str(folder.parent)},
            pass_fds=(commands_in, answers_out),
            stdin=subprocess.DEVNULL,
        )
        os.close(commands_in)
        os.close(answers_out)
        self._commands, answers = (
            Connection(commands_out, readable=False),
            Connection(answers_in, writable=False),
        )
        self._send((self._parameters.max_batch_size, self._parameters.values))
        self.vocabulary, self.max_positions = self._first(answers)
        threading.Thread(target=self._listen, args=(answers,), name="answers", daemon=True).start()

    def _first(self, answers: Connection) -> tuple[int, int]:
        try:
            ((kind, *rest),) = answers.recv()
        except EOFError:
            kind, rest = "failed", ["its process ended"]
        if kind == "ready":
            vocabulary, max_positions = rest
            return vocabulary, max_positions
        self.close()
        raise RuntimeError(f"the language model cannot be served: {rest[0]}")

    def _send(self, command: tuple[object, ...]) -> None:
        with suppress(OSError):  # it has died, of which `events` tells
            self._commands.send(command)

    def _listen(self, answers: Connection) -> None:
        """Everything that this process says has come, and then that it died."""
        reason = "its process ended"
        try:
            while True:
                for kind, *rest in answers.recv():
                    if kind == "said":
                        self.events.put(Said(*rest))
                    elif kind == "gone":
                        self.events.put(Gone(*rest))
                    else:
                        reason = rest[0]
        except (EOFError, OSError):
            self.events.put(Died(reason))
