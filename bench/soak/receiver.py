"""A receiver of webhooks that writes down what it accepts, and refuses some events the first time."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from standardwebhooks import Webhook, WebhookVerificationError

_MAX_BYTES: Final = 2**20
# One event in so many is refused once.
_REFUSED_ONE_IN: Final = 16


@dataclass(frozen=True, slots=True)
class Told:
    """A request that reached the receiver.

    Attributes:
        id: header `webhook-id`.
        path: where it was sent.
        type: of the event.
        object_id: of what the event is about.
        digest: of the body.
        status: what the receiver answered; 2xx: it took the event.
    """

    id: str
    path: str
    type: str
    object_id: str
    digest: str
    status: int


@contextmanager
def receiving(file: Path, secrets: dict[str, str], *, host: str = "127.0.0.1") -> Iterator[int]:
    """Receive on a port for the block, and log every request to the file.

    Args:
        file: takes one JSON line for each request.
        secrets: what signs the events of a path; a path without one takes nothing.
        host: to listen on.
    """
    lock, refused = threading.Lock(), set[str]()
    log = file.open("a")

    def status_of(path: str, body: bytes, headers: dict[str, str]) -> int:
        if path not in secrets:
            return 404
        try:
            Webhook(secrets[path]).verify(body, headers)
        except WebhookVerificationError:
            return 401
        event_id = headers["webhook-id"]
        is_chosen = int(sha256(event_id.encode()).hexdigest(), 16) % _REFUSED_ONE_IN == 0
        if is_chosen and event_id not in refused:
            refused.add(event_id)
            return 500
        return 204

    class Handler(BaseHTTPRequestHandler):
        """Takes one event a request."""

        def do_POST(self) -> None:
            """Log the request, then answer it."""
            body = self.rfile.read(min(int(self.headers["content-length"]), _MAX_BYTES))
            headers = {name.lower(): value for name, value in self.headers.items()}
            event = json.loads(body)
            with lock:
                status = status_of(self.path, body, headers)
                told = {
                    "id": headers["webhook-id"],
                    "path": self.path,
                    "type": event["type"],
                    "object_id": event["data"]["id"],
                    "digest": sha256(body).hexdigest(),
                    "status": status,
                }
                log.write(json.dumps(told) + "\n")
                log.flush()
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        """A server whose threads end with the process."""

        daemon_threads = True

    server = Server((host, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        log.close()


def read(file: Path) -> list[Told]:
    """Return every request that the receiver logged; a line that is being written is left out."""
    lines = file.read_text().splitlines(keepends=True)
    return [Told(**json.loads(line)) for line in lines if line.endswith("\n")]
