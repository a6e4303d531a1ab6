"""The parent's side of the generating process, in Triton's stub."""

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

_GRACE = 5.0  # seconds that the process has to end once its pipe is closed


@dataclass(frozen=True)
class Said:
    """New tokens of a sequence; with an `error` they are its last.

    Attributes:
        num_cached: tokens of its prompt that were in the cache, with its first tokens.
    """

    name: str
    tokens: list[int]
    error: str | None
    num_cached: int


@dataclass(frozen=True)
class Used:
    """The number of blocks that sequences refer to, each counted once."""

    blocks: int


@dataclass(frozen=True)
class Gone:
    """The event that a cancelled sequence no longer holds any block."""

    name: str


@dataclass(frozen=True)
class Died:
    """The event that the process has died and every running sequence is lost."""

    reason: str


class RemoteGenerator:
    """The handle of the generating process. Not thread-safe, except for `events`.

    `events` yields `Said`, `Used`, `Gone` and `Died` in order, and anything else that was put there.
    """

    def __init__(self, parameters: Parameters) -> None:
        """Start the process and wait until its model has answered once.

        Raises:
            RuntimeError: it does not start, for the reason in the message.
        """
        self.events: queue.Queue[object] = queue.Queue()
        self._parameters = parameters
        self._start()

    def begin(self, name: str, ids: list[int], *, max_tokens: int, end_id: int, sampling: Sampling) -> None:
        """Add a sequence from the next iteration on."""
        self._send((name, ids, max_tokens, end_id, astuple(sampling)))

    def cancel(self, name: str) -> None:
        """Remove a sequence at the next iteration boundary. `Gone` reports when it has left."""
        self._send((name,))

    def restart(self) -> None:
        """Replace the process by a new one without sequences.

        Raises:
            RuntimeError: it does not start.
        """
        self.close()
        self._start()

    def close(self) -> None:
        """End the process and wait for it."""
        self._commands.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        (commands_in, commands_out), (answers_in, answers_out) = os.pipe(), os.pipe()
        folder = Path(__file__).resolve().parent
        # The interpreter itself, not the library inside the stub; the stub finds its packages through it.
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
        with suppress(OSError):  # the process has died, which `events` reports
            self._commands.send(command)

    def _listen(self, answers: Connection) -> None:
        """Turn the process's answers into events until it ends, then report that it died."""
        reason = "its process ended"
        try:
            while True:
                for kind, *rest in answers.recv():
                    if kind == "said":
                        self.events.put(Said(*rest))
                    elif kind == "used":
                        self.events.put(Used(*rest))
                    elif kind == "gone":
                        self.events.put(Gone(*rest))
                    else:
                        reason = rest[0]
        except (EOFError, OSError):
            self.events.put(Died(reason))
