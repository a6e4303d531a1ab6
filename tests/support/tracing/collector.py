"""A collector of traces for which a test waits."""

from collections.abc import Iterator
from contextlib import contextmanager

from bench.tracing import receiver
from bench.tracing.receiver import SeenSpan
from support import eventually


class TraceReceiver(receiver.TraceReceiver):
    """What reached a collector."""

    def until(self, trace_id: str, *names: str) -> dict[str, list[SeenSpan]]:
        """Wait until the trace has a span of each of these names."""

        def complete() -> dict[str, list[SeenSpan]] | None:
            found = self.of_trace(trace_id)
            return found if found.keys() >= set(names) else None

        return eventually(complete)


@contextmanager
def collecting() -> Iterator[TraceReceiver]:
    """A collector that takes all."""
    made = TraceReceiver()
    with receiver.receiving(made):
        yield made
