"""Traces as they are set: what sends them, or nothing, without importing a package for that."""

import os
from typing import TYPE_CHECKING

from jobs.settings import TraceSettings

if TYPE_CHECKING:
    from jobs.traces.export import Collector, RequestSpans


def is_on(settings: TraceSettings) -> bool:
    """Return True if there is a collector; OpenTelemetry's own switch for all of it counts, too.

    Raises:
        ValueError: there is one, but the packages of the extra `traces` are not installed.
    """
    if settings.endpoint is None or os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    try:
        import jobs.traces.export  # noqa: F401
    except ImportError as error:
        message = "LONGBATCH_TRACES__ENDPOINT needs the extra `traces`: pip install 'longbatch[traces]'"
        raise ValueError(message) from error
    return True


def collector_of(settings: TraceSettings) -> "Collector | None":
    """Return what sends spans; None: traces are off."""
    if not is_on(settings):
        return None
    from jobs.traces.export import Collector

    return Collector(settings)


def request_spans_of(settings: TraceSettings) -> "RequestSpans | None":
    """Return what sends the spans of requests; None: traces are off."""
    if not is_on(settings):
        return None
    from jobs.traces.export import RequestSpans

    return RequestSpans(settings)
