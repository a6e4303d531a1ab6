"""Logs as events with fields: the one list of event names, and the structlog setup that prints them."""

import logging
import sys
import traceback
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter
from structlog.typing import EventDict, ExcInfo, FilteringBoundLogger

# Names in the order of a job's life. Fields: job_id and attempt if there is a job, trace_id if it has one;
# never text or secrets.
JOB_CLAIMED: Final = "job.claimed"
JOB_ENDED: Final = "job.ended"
JOB_RELEASED: Final = "job.released"
JOB_RETRIED: Final = "job.retried"
JOB_RESCUED: Final = "job.rescued"
LEASE_LOST: Final = "lease.lost"
RESERVATION_DRAINING: Final = "reservation.draining"
RESERVATION_DRAINED: Final = "reservation.drained"
ENGINE_READY: Final = "engine.ready"
ENGINE_PAUSED: Final = "engine.paused"
ENGINE_HALTED: Final = "engine.halted"
ENGINE_RESUMED: Final = "engine.resumed"
QUEUE_HALTED: Final = "queue.halted"
QUEUE_RESUMED: Final = "queue.resumed"
DISPATCHER_STARTED: Final = "dispatcher.started"
DISPATCHER_STOPPED: Final = "dispatcher.stopped"
BATCH_ACCEPTED: Final = "batch.accepted"
BATCH_REFUSED: Final = "batch.refused"
BATCH_ENDED: Final = "batch.ended"
SUMMARY_PLANNED: Final = "summary.planned"
SUMMARY_ENDED: Final = "summary.ended"
DOCUMENT_ENDED: Final = "document.ended"
WEBHOOK_DELIVERED: Final = "webhook.delivered"
WEBHOOK_FAILED: Final = "webhook.failed"
WEBHOOK_DISABLED: Final = "webhook.disabled"
WEBHOOK_UNRECORDED: Final = "webhook.unrecorded"
WEBHOOK_GIVEN_UP: Final = "webhook.given_up"
PARTS_SWEPT: Final = "parts.swept"
PARTS_FOREIGN_OWNER: Final = "parts.foreign_owner"
LOOP_FAILED: Final = "loop.failed"
LOOP_LATE: Final = "loop.late"
PROCESS_ENDING: Final = "process.ending"
TURN_FAILED: Final = "turn.failed"
ROW_FAILED: Final = "row.failed"
REQUEST_FAILED: Final = "request.failed"
RATE_LIMITS_LOCAL: Final = "rate_limits.local"
TENANT_CREATED: Final = "tenant.created"
TENANT_CHANGED: Final = "tenant.changed"
TENANT_DELETION_ORDERED: Final = "tenant.deletion_ordered"
TENANT_DELETION_WAITS: Final = "tenant.deletion_waits"
TENANT_DELETED: Final = "tenant.deleted"
KEY_CREATED: Final = "key.created"
KEY_CHANGED: Final = "key.changed"
KEY_REVOKED: Final = "key.revoked"
API_READY: Final = "api.ready"
API_STOPPED: Final = "api.stopped"
API_CONNECTION_LIMIT: Final = "api.connection_limit"
OPEN_FILES_LIMIT_LOW: Final = "open_files.limit_low"
METRICS_READY: Final = "metrics.ready"
METRICS_UNAVAILABLE: Final = "metrics.unavailable"
TRACES_UNSENT: Final = "traces.unsent"
# All of the above.
NAMES: Final = frozenset(value for name, value in globals().items() if name.isupper() and "." in str(value))


# Of no registry: each process that has one registers it. Counted after the commit that ended the jobs.
JOBS_ENDED: Final = Counter(
    "longbatch_jobs_ended", "Jobs that transactions of this process ended.", ("state",), registry=None
)


LOG_LINES_LOST: Final = Counter(
    "longbatch_log_lines_lost", "Log lines that could not be written, as on a full disk.", registry=None
)


class EventCounter:
    """Counts the events of the log, and the jobs that this process ends, for Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        registry.register(JOBS_ENDED)
        registry.register(LOG_LINES_LOST)
        self._events = Counter(
            "longbatch_events",
            "Events logged by this process; the names are those of the log.",
            ("event",),
            registry=registry,
        )
        for name in NAMES:
            self._events.labels(name)  # so that its first increase is one

    def count(self, event: str) -> None:
        """Count an event of the log."""
        if event in NAMES:
            self._events.labels(event).inc()


class _Logger(structlog.make_filtering_bound_logger(logging.INFO)):  # type: ignore[misc]  # made at run time
    """A logger that never raises: a full disk must not end what it was to describe."""

    def _proxy_to_logger(self, method_name: str, event: str | None = None, **fields: object) -> None:
        try:
            super()._proxy_to_logger(method_name, event, **fields)
        except Exception:  # noqa: BLE001  # whatever it is, it cannot be logged
            LOG_LINES_LOST.inc()


def configure(*, json: bool = True, on_event: Callable[[str], object] = lambda _: None) -> None:
    """Log each event as one JSON object, or one readable line, on standard output.

    A line that cannot be written is lost and counted.

    Args:
        json: one JSON object.
        on_event: called with the name of each event.
    """

    def note(_logger: object, _level: str, event: EventDict) -> EventDict:
        on_event(event["event"])
        return event

    renderer = structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            note,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(describe_error),
            renderer,
        ],
        wrapper_class=_Logger,
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )


def describe_error(exc_info: ExcInfo) -> str:
    """Describe where an error and its causes were raised, and their types.

    Leaves out their texts: a driver's text can quote a row's values, and so a prompt.
    """
    parts = []
    error: BaseException | None = exc_info[1]
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        parts.append("".join(traceback.format_tb(error.__traceback__)) + kind)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\nthen:\n".join(reversed(parts))


def log_failure(event: str, error: BaseException, **fields: object) -> None:
    """Log that work on one row failed, with the type of the error and where it was raised."""
    where = describe_error((type(error), error, error.__traceback__))
    logger().error(event, **fields, error=type(error).__name__, exception=where)


def in_trace(traceparent: str | None) -> dict[str, str]:
    """Return the field of what belongs to a trace; none if nothing does."""
    return {} if traceparent is None else {"trace_id": traceparent[3:35]}


def logger() -> FilteringBoundLogger:
    """Return an event logger; bind fields with `.bind(job_id=…)`."""
    found: FilteringBoundLogger = structlog.get_logger()
    return found
