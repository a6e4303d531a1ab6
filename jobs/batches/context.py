"""What service workers do for batches needs: where the bytes are, what counts prompts, and the limits."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from jobs.engines import registry
from jobs.engines.capacity import Capacity
from jobs.files.storage import PartStore
from jobs.files.stores import make_store
from jobs.prompts.store import Counter
from jobs.settings import LimitSettings, Settings


@dataclass(frozen=True, slots=True)
class BatchTools:
    """Everything that work on batches takes beside a session.

    Attributes:
        store: of file bytes.
        counter: counts short prompts at once; the others are counted later.
        fallback: the limits while no engine has registered.
        model: that is served even while no engine has registered.
        max_lines: of one batch.
        max_line_bytes: longer lines are refused, and the batch with them.
        default_max_tokens: of a line that names no limit.
        max_inline_chars: prompts up to this length are counted at once.
        lifetime: of files that have no other.
        limits: of tenants without limits of their own.
    """

    store: PartStore
    counter: Counter
    fallback: Capacity
    model: str
    max_lines: int
    max_line_bytes: int
    default_max_tokens: int
    max_inline_chars: int
    lifetime: timedelta
    limits: LimitSettings

    @classmethod
    def of(cls, settings: Settings, counter: Counter) -> Self:
        """As the settings say."""
        return cls(
            store=make_store(settings.files),
            counter=counter,
            fallback=registry.configured_capacity(settings.engine),
            model=settings.engine.model,
            max_lines=settings.batches.max_lines,
            max_line_bytes=settings.api.max_body_bytes,
            default_max_tokens=settings.batches.default_max_tokens,
            # A part of the lines is counted inside its transaction: half a second at most.
            max_inline_chars=settings.api.inline_count_chars // 8,
            lifetime=timedelta(days=settings.files.retention_days),
            limits=settings.limits,
        )
