"""The server that this engine lives in: whether it is being stopped, and whether it is gone."""

import os
import socket
import threading
import time

_PERIOD = 0.5  # seconds between looks
_TIMEOUT = 0.2  # seconds


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


def exit_when_orphaned(closing: threading.Event) -> None:
    """The process ends within a second of its server's sudden death, until `closing` is set.

    Triton's stub wants to end then too, but hangs while one of its threads waits for an answer.
    """
    parent = os.getppid()

    def watch() -> None:
        while not closing.wait(_PERIOD):
            if os.getppid() != parent:
                os._exit(1)

    threading.Thread(target=watch, name="orphan-watch", daemon=True).start()
