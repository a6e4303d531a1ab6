"""Numbers for Prometheus: requests counted here, queue and engines read from Postgres at each scrape."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session
from starlette.types import Scope

from jobs import document_work, queries
from jobs.database import database_now
from jobs.queries import EngineLoad

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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The queue and the engines at one moment."""

    num_jobs: dict[str, int]
    queued_tokens: int
    engines: Sequence[EngineLoad]
    pending_webhooks: int
    waiting_documents: int
    now: datetime


def read_snapshot(session: Session) -> Snapshot:
    """What Postgres says now."""
    return Snapshot(
        num_jobs=queries.count_by_state(session),
        queued_tokens=queries.queued_tokens(session),
        engines=queries.engine_loads(session),
        pending_webhooks=queries.pending_webhooks(session),
        waiting_documents=document_work.count_waiting(session),
        now=database_now(session),
    )


def queue_exposition(snapshot: Snapshot | None) -> bytes:
    """The snapshot in Prometheus' text format; None: the database does not answer."""
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(snapshot))
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: Snapshot | None) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        up = "1 when the database answered this scrape."
        yield GaugeMetricFamily("longbatch_database_up", up, value=float(self._snapshot is not None))
        if self._snapshot is not None:
            yield from _queue_gauges(self._snapshot)
            yield from _engine_gauges(self._snapshot)


def _queue_gauges(snapshot: Snapshot) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("longbatch_jobs", "Unfinished jobs by state.", labels=["state"])
    for state, count in snapshot.num_jobs.items():
        jobs.add_metric([state], count)
    yield jobs
    tokens = "Prompt and output tokens at most of all queued jobs."
    yield GaugeMetricFamily("longbatch_queued_tokens", tokens, value=snapshot.queued_tokens)
    events = "Webhook events that still have to be delivered."
    yield GaugeMetricFamily("longbatch_webhook_events_pending", events, value=snapshot.pending_webhooks)
    documents = "Documents whose text is waited for."
    yield GaugeMetricFamily("longbatch_documents_extracting", documents, value=snapshot.waiting_documents)


def _engine_gauges(snapshot: Snapshot) -> Iterator[Metric]:
    wanted = {
        "slots": "Requests that the engine runs at once.",
        "slots_booked": "Slots booked, draining ones included.",
        "blocks": "KV-cache blocks of the engine.",
        "blocks_booked": "KV-cache blocks booked, draining ones included.",
        "paused": "1 while no job is claimed for the engine.",
        "seen_age_seconds": "Time since a worker last found the engine ready.",
    }
    gauges = {
        name: GaugeMetricFamily(f"longbatch_engine_{name}", text, labels=["engine", "model"])
        for name, text in wanted.items()
    }
    for load in snapshot.engines:
        values = {
            "slots": load.engine.max_batch_size,
            "slots_booked": load.held_slots,
            "blocks": load.engine.max_blocks,
            "blocks_booked": load.held_blocks,
            "paused": float(load.engine.paused_reason is not None),
            "seen_age_seconds": (snapshot.now - load.engine.seen_at).total_seconds(),
        }
        for name, value in values.items():
            gauges[name].add_metric([load.engine.name, load.engine.model], value)
    yield from gauges.values()
