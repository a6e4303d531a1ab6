"""Requests of this process, counted and timed for Prometheus."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Scope

_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)  # seconds


class HttpMetrics:
    """Requests of this process.

    Attributes:
        open_requests: counted up and down by whoever answers them.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        labels = ("method", "route")
        self._requests = Counter(
            "longbatch_http_requests",
            "Requests answered; status 0: the caller left first.",
            (*labels, "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "longbatch_http_request_seconds",
            "Time until the whole answer was sent; long polls are left out.",
            labels,
            buckets=_BUCKETS,
            registry=self._registry,
        )

        self.open_requests = Gauge(
            "longbatch_http_open_requests",
            "Requests not answered yet, long polls among them.",
            registry=self._registry,
        )

    def observe(self, scope: Scope, *, status: int, seconds: float) -> None:
        """The request counts under its route's template, never under its path."""
        route = getattr(scope.get("route"), "path", "unknown")
        method = scope["method"] if route != "unknown" else "any"
        self._requests.labels(method, route, str(status)).inc()
        if b"wait=" not in scope["query_string"]:
            self._seconds.labels(method, route).observe(seconds)

    def exposition(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
