"""The server that runs this engine: detecting its shutdown and its death."""

import ctypes
import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

_PERIOD = 0.5  # seconds between polls
_TIMEOUT = 0.2  # seconds
_ARMING_PERIOD = 0.05  # seconds between polls for the end of the server's loading thread
_PR_SET_PDEATHSIG = 1


class ServerWatch:
    """A watch on the server's HTTP port, which Triton closes first when it stops.

    Triton does not notify its models, and waits for streams that last minutes; then it hangs while it exits.
    """

    def __init__(self, http_port: int) -> None:
        """Args: http_port: on the loopback address; with 0 nothing is ever detected."""
        self._port = http_port
        self._has_answered = False
        self._next = 0.0

    def is_stopping(self) -> bool:
        """Return True if the port was open and is closed now. Polls it every half second at most."""
        now = time.monotonic()
        if not self._port or now < self._next:
            return False
        self._next = now + _PERIOD
        try:
            socket.create_connection(("127.0.0.1", self._port), _TIMEOUT).close()
        except ConnectionRefusedError:
            return self._has_answered  # a starting server opens the port last
        except OSError:
            return False
        self._has_answered = True
        return False


def die_with_server() -> Callable[[], None]:
    """End this process when its server dies suddenly, and log its stacks should it crash.

    It takes effect soon after the call. Triton's stub tries to end then too, but hangs if one of its threads
    waits for the dead server's answer: setting a gauge does so while holding the interpreter lock, and then
    no thread can detect anything. So the kernel must kill the process. Its signal is bound to one thread of
    the server: not to the one that loads models, which ends normally, but to the main thread, which inherits
    this process from it.

    Triton logs nothing of a crash: from then on the process's requests fail or wait forever.

    Returns:
        ends both; a model calls it when it is unloaded, since Triton 2.51 often crashes after that.
    """
    faulthandler.enable()
    server = os.getppid()
    released = threading.Event()

    def watch() -> None:
        is_armed = False
        while not released.wait(_PERIOD if is_armed else _ARMING_PERIOD):
            is_armed = is_armed or _arm(server)
            if os.getppid() != server:
                os._exit(1)

    def release() -> None:
        faulthandler.disable()
        released.set()

    threading.Thread(target=watch, name="server-watch", daemon=True).start()
    return release


def _arm(server: int) -> bool:
    """Ask the kernel to kill this process with the server's main thread. Returns True if it will."""
    try:
        inherited = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    except OSError:  # a kernel without this file
        return False
    if str(os.getpid()) not in inherited:
        return False
    return ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0
