"""Prometheus metrics of the queue and the engines, read from Postgres at each scrape."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session

from jobs import queries
from jobs.database import database_now
from jobs.documents import extraction
from jobs.queries import Backlog, EngineUsage
from jobs.states import Lane


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The queue and the engines at one moment."""

    num_jobs: dict[str, int]
    backlogs: Sequence[Backlog]
    engines: Sequence[EngineUsage]
    pending_webhooks: int
    waiting_documents: int
    now: datetime


def read_snapshot(session: Session) -> MetricsSnapshot:
    """Read the queue and the engines from Postgres."""
    return MetricsSnapshot(
        num_jobs=queries.count_by_state(session),
        backlogs=queries.backlogs(session),
        engines=queries.engine_usages(session),
        pending_webhooks=queries.pending_webhooks(session),
        waiting_documents=extraction.count_waiting(session),
        now=database_now(session),
    )


def queue_exposition(snapshot: MetricsSnapshot | None) -> bytes:
    """Render the snapshot in Prometheus' text format.

    Args:
        snapshot: None if the database does not answer.
    """
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(snapshot))
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: MetricsSnapshot | None) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        up = "1 when the database answered this scrape."
        yield GaugeMetricFamily("longbatch_database_up", up, value=float(self._snapshot is not None))
        if self._snapshot is not None:
            yield from _queue_gauges(self._snapshot)
            yield from _engine_gauges(self._snapshot)


def _queue_gauges(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("longbatch_jobs", "Unfinished jobs by state.", labels=["state"])
    for state, count in snapshot.num_jobs.items():
        jobs.add_metric([state], count)
    yield jobs
    tokens = "Prompt tokens and maximum output tokens of all queued jobs."
    yield GaugeMetricFamily(
        "longbatch_queued_tokens", tokens, value=sum(each.num_tokens for each in snapshot.backlogs)
    )
    ages = GaugeMetricFamily(
        "longbatch_oldest_queued_seconds", "Time since the oldest queued job was submitted.", labels=["lane"]
    )
    for lane in Lane:
        oldest = min(
            (each.oldest_at for each in snapshot.backlogs if each.lane == lane), default=snapshot.now
        )
        ages.add_metric([lane], max(0.0, (snapshot.now - oldest).total_seconds()))
    yield ages
    yield _queued_by_model(snapshot)
    events = "Webhook events not delivered yet."
    yield GaugeMetricFamily("longbatch_webhook_events_pending", events, value=snapshot.pending_webhooks)
    documents = "Documents whose text is not extracted yet."
    yield GaugeMetricFamily("longbatch_documents_extracting", documents, value=snapshot.waiting_documents)


def _queued_by_model(snapshot: MetricsSnapshot) -> Metric:
    """Count queued jobs by model. A model of an idle engine has 0, so that autoscalers find it."""
    counts = Counter({load.engine.model: 0 for load in snapshot.engines})
    for each in snapshot.backlogs:
        counts[each.model] += each.num_jobs
    queued = GaugeMetricFamily("longbatch_queued_jobs", "Queued jobs by model.", labels=["model"])
    for model, count in counts.items():
        queued.add_metric([model], count)
    return queued


def _engine_gauges(snapshot: MetricsSnapshot) -> Iterator[Metric]:
    wanted = {
        "slots": "Requests that the engine runs at once.",
        "slots_booked": "Requests on the engine, draining and waiting ones included.",
        "blocks": "KV-cache blocks of the engine.",
        "blocks_booked": "Reserved KV-cache blocks, including draining ones.",
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
            "paused": float(load.not_ready_reason is not None or load.engine.halt is not None),
            "seen_age_seconds": (snapshot.now - load.engine.seen_at).total_seconds(),
        }
        for name, value in values.items():
            gauges[name].add_metric([load.engine.name, load.engine.model], value)
    yield from gauges.values()
