"""A receiver of webhooks that records every request and answers as it is scripted."""

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Delivery:
    """One request that arrived."""

    path: str
    body: bytes
    headers: dict[str, str]

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def subject(self) -> str:
        return str(self.event["data"]["id"])


@dataclass
class Receiver:
    """Attributes: refusals: how many more requests of a path get an error."""

    port: int = 0
    deliveries: list[Delivery] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def of(self, job_id: str) -> list[Delivery]:
        """List what arrived about a job."""
        return [each for each in [*self.deliveries] if each.subject == job_id]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver for the block."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            is_refused = receiver.refusals[self.path] > 0
            receiver.refusals[self.path] -= is_refused
            receiver.deliveries.append(Delivery(self.path, body, headers))
            self.send_response(500 if is_refused else 204)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
