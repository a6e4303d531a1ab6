"""A span: one stretch of time in a trace, as a value; `traces.export` writes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from jobs.traces.context import TraceContext

AttributeValue = str | int | float | bool | tuple[str, ...]
Attributes = Mapping[str, AttributeValue]


class SpanKind(Enum):
    """On which side of a request a span is."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """A moment within a span."""

    name: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One stretch of time in a trace. No attribute holds words of a prompt, an answer or a secret.

    Attributes:
        name: one of few, so that a collector can group by it.
        context: its own.
        parent_id: the span above it, of the same trace; None: it is the first.
        started_at: aware; by the database's clock, except in the span of a request.
        ended_at: not before `started_at`.
        attributes: by the names of docs/traces.md.
        error_type: a code; None: nothing failed.
    """

    name: str
    context: TraceContext
    parent_id: str | None
    started_at: datetime
    ended_at: datetime
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Attributes = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    error_type: str | None = None


def known(**values: AttributeValue | None) -> dict[str, AttributeValue]:
    """Return what is not None, with dots for the double underscores of the names."""
    return {name.replace("__", "."): value for name, value in values.items() if value is not None}
