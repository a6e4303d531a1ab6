"""Counts and times the requests of this process for Prometheus."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Scope

from jobs.telemetry import EventCounter

_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)  # seconds


class HttpMetrics:
    """Metrics of this process's requests.

    Attributes:
        events: counts the events of the log.
        open_requests: incremented and decremented by the middleware that answers requests.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.events = EventCounter(self.registry)
        labels = ("method", "route")
        self._requests = Counter(
            "longbatch_http_requests",
            "Requests answered; status 0 means the caller left first.",
            (*labels, "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "longbatch_http_request_seconds",
            "Time until the whole response was sent; excludes long polls.",
            labels,
            buckets=_BUCKETS,
            registry=self.registry,
        )

        self.open_requests = Gauge(
            "longbatch_http_open_requests",
            "Requests not answered yet, including long polls.",
            registry=self.registry,
        )

    def observe(self, scope: Scope, *, status: int, seconds: float) -> None:
        """Count the request under its route's template, never under its path."""
        route = getattr(scope.get("route"), "path", "unknown")
        method = scope["method"] if route != "unknown" else "any"
        self._requests.labels(method, route, str(status)).inc()
        if b"wait=" not in scope["query_string"]:
            self._seconds.labels(method, route).observe(seconds)

    def exposition(self) -> bytes:
        """Render the metrics in Prometheus' text format."""
        return generate_latest(self.registry)
