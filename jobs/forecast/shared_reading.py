"""What queued jobs have to read if their engine shares prefixes: one of each family its whole prompt."""

from collections.abc import Iterable, Mapping
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.forecast.engine_speed import computed_tokens, reading_work
from jobs.forecast.simulation import RemainingTokens
from jobs.models import PromptText
from jobs.prompts.prefixes import StoredPrefixes, family_tokens, shared_tokens
from jobs.queries import QueuedJob
from jobs.scheduling.packing import Family
from jobs.scheduling.prefixes.engine_prefixes import family_of


def read_once(
    session: Session,
    queue: Iterable[QueuedJob],
    running: Mapping[Family, UUID],
    lengths: Mapping[UUID, RemainingTokens],
) -> dict[UUID, RemainingTokens]:
    """Return what followers are expected to take: of their prompts only what no other job reads for them.

    As claims let the jobs of a family follow each other, none is expected to be read twice.

    Args:
        session: it sees the texts of all tenants.
        queue: in rank order.
        running: families of running jobs, each with the text of one.
        lengths: of the queued jobs, if each reads its whole prompt.
    """
    readers = dict(running)
    followers: list[tuple[QueuedJob, UUID]] = []
    for job in queue:
        if (family := family_of(job)) is not None:
            reader = readers.setdefault(family, job.text_id)
            if family in running or reader != job.text_id:
                followers.append((job, reader))
    texts = {each for job, reader in followers for each in (job.text_id, reader)}
    columns = (PromptText.id, PromptText.prefixes, PromptText.num_tokens)
    rows = session.execute(select(*columns).where(PromptText.id.in_(texts))) if texts else ()
    prefixes = {
        each: StoredPrefixes(kept, num_tokens) for each, kept, num_tokens in rows if kept and num_tokens
    }
    return {
        job.id: _without(lengths[job.id], _shared(job, prefixes.get(job.text_id), prefixes.get(reader)))
        for job, reader in followers
    }


def reading_share(whole: Mapping[UUID, RemainingTokens], read: Mapping[UUID, RemainingTokens]) -> float:
    """Return the part of the work of reading these prompts that is left if `read` is what is read of some."""
    total = sum(reading_work(each.prompt_tokens) for each in whole.values())
    left = sum(reading_work(read.get(key, each).prompt_tokens) for key, each in whole.items())
    return left / total if total else 1.0


def _shared(job: QueuedJob, mine: StoredPrefixes | None, other: StoredPrefixes | None) -> int:
    """Count the tokens that the job surely has in common with its reader."""
    if not mine or not other:
        return min(family_tokens(job.prompt_tokens), job.prompt_tokens - 1)
    return min(shared_tokens(mine, other), job.prompt_tokens - 1)


def _without(length: RemainingTokens, shared: int) -> RemainingTokens:
    """Leave out tokens at the beginning."""
    return RemainingTokens(computed_tokens(length.prompt_tokens, cached=shared), length.new_tokens)
