"""The server that this engine lives in: whether it is being stopped, and whether it is gone."""

import ctypes
import os
import signal
import socket
import threading
import time
from pathlib import Path

_PERIOD = 0.5  # seconds between looks
_TIMEOUT = 0.2  # seconds
_ARMING_PERIOD = 0.05  # seconds between looks for the moment when the server's loading thread has ended
_PR_SET_PDEATHSIG = 1


class ServerWatch:
    """Looks at the server's HTTP port, which Triton closes first when it is told to stop.

    It does not tell its models, and waits for streams that last minutes; then it hangs while it exits.
    """

    def __init__(self, http_port: int) -> None:
        """Args: http_port: on the loopback address; 0 for none, and then nothing is ever noticed."""
        self._port = http_port
        self._has_answered = False
        self._next = 0.0

    def is_stopping(self) -> bool:
        """Whether the port was open and is no longer; looked at every half second."""
        now = time.monotonic()
        if not self._port or now < self._next:
            return False
        self._next = now + _PERIOD
        try:
            socket.create_connection(("127.0.0.1", self._port), _TIMEOUT).close()
        except ConnectionRefusedError:
            return self._has_answered  # while starting it opens the port last
        except OSError:
            return False
        self._has_answered = True
        return False


def die_with_server(released: threading.Event) -> None:
    """From soon on this process ends when its server dies suddenly, until `released` is set.

    Triton's stub wants to end then too, but hangs when one of its threads waits for the dead server's answer:
    setting a gauge does so with the interpreter's lock held, and then no thread can notice anything. So the
    kernel is asked to kill it. That signal is bound to one thread of the server: not to the one that loads
    models, which ends in peace, but to the main one, which inherits this process from it.
    """
    server = os.getppid()

    def watch() -> None:
        is_armed = False
        while not released.wait(_PERIOD if is_armed else _ARMING_PERIOD):
            is_armed = is_armed or _arm(server)
            if os.getppid() != server:
                os._exit(1)

    threading.Thread(target=watch, name="server-watch", daemon=True).start()


def _arm(server: int) -> bool:
    """Whether the kernel will kill this process together with the server's main thread."""
    try:
        inherited = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    except OSError:  # a kernel that does not tell
        return False
    if str(os.getpid()) not in inherited:
        return False
    return ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0
