"""The preview: what the next claims on an engine will choose from, read without a lock."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.ids import uuid7
from jobs.scheduling import engine_load
from jobs.scheduling.choosing import Choices, choose_ranked, emptied, without
from jobs.scheduling.engine_queue import EngineQueue
from jobs.scheduling.packing import Running
from jobs.scheduling.prefixes.followers import Reuse
from jobs.scheduling.ranking import Ranked
from jobs.scheduling.sizing import ClaimPolicy
from jobs.transitions import Lease

# Running jobs whose end a preview tries one by one. In a larger batch, what would start if all ended says
# nearly the same.
_MAX_ENDS: Final = 16
# Jobs of the round after that. Where more start together, those prompts are read as they start, many at once.
_MAX_NEXT: Final = 128
# Prompt tokens that are read ahead besides those of the jobs that start next: a few documents, or all
# candidates with short prompts, which may all have ended before the next preview.
_MAX_SHORT_TOKENS: Final = 32_768


@dataclass(frozen=True, slots=True)
class Preview:
    """What `preview_claims` found a moment ago.

    Attributes:
        candidates: the head of the queue.
        text_ids: prompts of the jobs likely to start next: now, or once one or all running jobs end.
    """

    candidates: Sequence[Ranked] = ()
    text_ids: Sequence[UUID] = ()


def preview_claims(session: Session, engine_name: str, policy: ClaimPolicy) -> Preview:
    """Predict what the next claims on this engine will choose from, and their choice.

    Locks no job and no engine. Updates the accounts, because claims that trust this preview do not.
    """
    found = engine_load.find(session, engine_name)
    if found is None or found[0].halt is not None:
        return Preview()
    engine, now = found
    load = engine_load.read(session, engine)
    queue = EngineQueue(session, engine, now, load, policy)
    if not policy.has_rivals:  # or else the head of the queue is read with them in mind
        queue.look_for_rivals()
    candidates = queue.head(elsewhere=queue.elsewhere())
    text_ids: dict[UUID, None] = {}  # in order, each once
    for ended in (None, *islice(_different(load.running), _MAX_ENDS)):
        left = load if ended is None else without(load, ended)
        choice = choose_ranked(candidates, left, policy.packing, queue.known)
        text_ids.update({each.job.text_id: None for each in candidates if each.job.id == choice.start})
    text_ids.update(dict.fromkeys(_texts_of_next_round(queue, candidates)))
    text_ids.update(dict.fromkeys(_short_texts(candidates)))
    return Preview(candidates, list(text_ids))


def _different(running: Mapping[UUID, Running]) -> Iterable[UUID]:
    """Return one of all jobs whose ends would leave the same room, by its lease."""
    return {(each.blocks, each.lane): lease_id for lease_id, each in running.items()}.values()


def _short_texts(candidates: Sequence[Ranked]) -> Iterator[UUID]:
    """Yield the texts of the first jobs, all together no longer than a long prompt: short ones end soon."""
    num_tokens = 0
    for each in candidates:
        num_tokens += each.job.prompt_tokens
        if num_tokens > _MAX_SHORT_TOKENS:
            return
        yield each.job.text_id


def _texts_of_next_round(queue: EngineQueue, candidates: Sequence[Ranked]) -> list[UUID]:
    """Find the texts of jobs that would start if all running jobs ended together.

    Jobs of equal length do.
    """
    text_ids, known = list[UUID](), queue.known
    choices = Choices(candidates, emptied(queue.load), queue.policy.packing, known)
    while len(text_ids) < _MAX_NEXT and (found := choices.choose()) is not None:
        job = found[0].job
        choices.start(found[0], Lease(job.id, uuid7()), known.reuse(job) if known is not None else Reuse())
        text_ids.append(job.text_id)
    return text_ids
