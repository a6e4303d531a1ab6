"""Metrics of any worker process, and the port that serves them. No label holds an id or a tenant."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    make_wsgi_app,
    start_http_server,
)

from jobs import telemetry
from jobs.loopback import is_local_request, is_loopback
from jobs.settings import MetricsSettings
from jobs.telemetry import EventCounter

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_ROUND_BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60)  # seconds
_CLOSE_SECONDS: Final = 1.0


def _refusing_rebound_names(app: "WSGIApplication") -> "WSGIApplication":
    """Wrap an application that needs no key: a browser on this machine must not read it for another site."""

    def refusing(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        client = environ["REMOTE_ADDR"]
        if is_loopback(client) and not is_local_request(client, environ.get("HTTP_HOST")):
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"The Host header must name this machine: use 127.0.0.1 or localhost.\n"]
        return app(environ, start_response)

    return refusing


class ProcessMetrics:
    """The metrics of one process, and the port they are read from.

    Attributes:
        registry: holds them all.
        events: counts the events of the log.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.events = EventCounter(self.registry)
        self._rounds = Histogram(
            "longbatch_round_seconds",
            "Rounds of the service worker's duties.",
            ("duty",),
            buckets=_ROUND_BUCKETS,
            registry=self.registry,
        )
        self._server: tuple[WSGIServer, Thread] | None = None

    @contextmanager
    def timing(self, duty: str) -> Iterator[None]:
        """Observe how long a round of this duty takes."""
        with self._rounds.labels(duty).time():
            yield

    def serve(self, settings: MetricsSettings) -> None:
        """Answer `GET /metrics` from a thread of its own, if a port is set.

        A port that is taken is logged: jobs matter more than their figures.
        """
        if settings.port is None:
            return
        try:
            server, thread = start_http_server(settings.port, settings.host, self.registry)
            server.set_app(_refusing_rebound_names(make_wsgi_app(self.registry)))
        except OSError as error:
            telemetry.logger().error(
                telemetry.METRICS_UNAVAILABLE, port=settings.port, error=type(error).__name__
            )
            return
        self._server = server, thread
        url = f"http://{settings.host}:{server.server_port}/metrics"
        telemetry.logger().info(telemetry.METRICS_READY, url=url)

    def close(self) -> None:
        """Stop answering; idempotent."""
        if self._server is not None:
            server, thread = self._server
            self._server = None
            server.shutdown()
            server.server_close()
            thread.join(_CLOSE_SECONDS)
