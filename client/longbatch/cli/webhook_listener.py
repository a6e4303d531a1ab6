"""A receiver of webhooks on this machine: verifies each delivery, answers it and hands its event on."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from longbatch.errors import SignatureError
from longbatch.objects import Event
from longbatch.webhooks import verify

LISTENER_HOST: Final = "127.0.0.1"
_MAX_BODY_BYTES: Final = 2**20  # events have at most 16 KiB of output and its metadata
_READ_SECONDS: Final = 15.0  # when the sender gives up, too

# Called by the thread of a request: with an event and the delivery's body, or with why there is none.
Deliver = Callable[[Event, dict[str, Any]], None]
Refuse = Callable[[str], None]


class Listener(ThreadingHTTPServer):
    """An HTTP server on loopback, bound at once; deliveries wait until it is `serving`.

    Args:
        port: 0 for any free one.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True
    request_queue_size = 64
    secret: str
    deliver: Deliver
    refuse: Refuse

    def __init__(self, port: int) -> None:
        super().__init__((LISTENER_HOST, port), _Delivery)

    @property
    def url(self) -> str:
        """Where deliveries go."""
        return f"http://{LISTENER_HOST}:{self.server_port}/"

    @contextmanager
    def serving(self, secret: str, *, deliver: Deliver, refuse: Refuse) -> Iterator[None]:
        """Answer deliveries in other threads until the block ends."""
        self.secret, self.deliver, self.refuse = secret, deliver, refuse
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  # the library's
        """Drop a connection that broke: its sender tries again."""


class _Delivery(BaseHTTPRequestHandler):
    """One connection of a sender."""

    server: Listener
    timeout = _READ_SECONDS

    def do_POST(self) -> None:
        """Verify a delivery and answer it."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MAX_BODY_BYTES:
            self._refuse(f"The request has no body of at most {_MAX_BODY_BYTES} bytes.")
            return
        body = self.rfile.read(int(length))
        try:
            event = verify(dict(self.headers.items()), body, secret=self.server.secret)
        except SignatureError as error:
            self._refuse(error.message)
            return
        self._answer(HTTPStatus.OK)
        self.server.deliver(event, json.loads(body))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's name
        """Print nothing: the command prints events."""

    def _refuse(self, why: str) -> None:
        self._answer(HTTPStatus.BAD_REQUEST, why)
        self.server.refuse(why)

    def _answer(self, status: HTTPStatus, text: str = "") -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
