"""What service workers need for batches: the file store, the prompt counter and the limits."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from jobs.batches.ahead import Ahead
from jobs.engines import registry
from jobs.engines.capacity import Capacity
from jobs.files.storage import PartStore
from jobs.files.stores import make_store
from jobs.prompts.store import SetCounter
from jobs.settings import LimitSettings, Settings

if TYPE_CHECKING:
    from jobs.batches.line_requests import LineRequest


@dataclass(frozen=True, slots=True)
class BatchTools:
    """Everything that batch work needs besides a session.

    Attributes:
        store: of file bytes.
        counter: counts short prompts immediately; longer ones are counted later.
        default_capacity: what to assume while no engine has registered.
        model: served even while no engine is registered.
        max_lines: of one batch.
        max_line_bytes: a longer line makes the whole batch invalid.
        default_max_tokens: of a line that sets no limit.
        max_inline_chars: prompts up to this length are counted immediately.
        lifetime: of files that set none of their own.
        limits: of tenants without limits of their own.
        shares_equal: lines that ask for the same run once, unless they say otherwise.
        max_traced: lines in the trace of a batch that has one.
        ahead: reads lines that come next.
    """

    store: PartStore
    counter: SetCounter
    default_capacity: Capacity
    model: str
    max_lines: int
    max_line_bytes: int
    default_max_tokens: int
    max_inline_chars: int
    lifetime: timedelta
    limits: LimitSettings
    shares_equal: bool = False
    max_traced: int = 0
    ahead: Ahead[Iterable["LineRequest"]] = field(default_factory=Ahead)

    @classmethod
    def of(cls, settings: Settings, counter: SetCounter) -> Self:
        """Build the tools from the settings."""
        return cls(
            store=make_store(settings),
            counter=counter,
            default_capacity=registry.configured_capacity(settings.engine),
            model=settings.engine.model,
            max_lines=settings.batches.max_lines,
            max_line_bytes=settings.api.max_body_bytes,
            default_max_tokens=settings.batches.default_max_tokens,
            # A slice of lines is counted inside its transaction: half a second at most.
            max_inline_chars=settings.api.inline_count_chars // 8,
            lifetime=timedelta(days=settings.files.retention_days),
            limits=settings.limits,
            shares_equal=settings.jobs.share_equal,
            max_traced=settings.traces.max_jobs,
        )
