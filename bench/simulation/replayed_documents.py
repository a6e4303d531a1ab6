"""The policy for shared documents by what a worker knows: a replay of what ran, corrected by the engine."""

from dataclasses import dataclass, field
from uuid import UUID

from bench.simulation.shared_documents import SharedPacked
from bench.simulation.world import SimulatedJob, World
from jobs.scheduling.packing import Family, Reserved
from jobs.scheduling.prefixes.prefix_replay import Answered, PrefixReplay
from jobs.scheduling.segments import Segment

_TENANT = UUID(int=0)
_WHOLE = 1 << 30  # blocks: no document has as many


@dataclass(slots=True)
class _Known:
    """The documents that the engine has, for all the worker knows."""

    documents: set[int] = field(default_factory=set)

    def found(self, document: int | None) -> int:
        """Return how many of the document's blocks can be reused, at least."""
        return _WHOLE if document in self.documents else 0


@dataclass(frozen=True, slots=True)
class Replayed(SharedPacked):
    """The product, which sees of the engine's cache only what jobs found there.

    Each pick is a claim. Use an instance for one run.
    """

    replay: PrefixReplay = field(default_factory=PrefixReplay)
    known: _Known = field(default_factory=_Known)

    def pick(self, world: World) -> SimulatedJob | None:
        """Pick what the planner chooses, by the replay."""
        self._observe(world)
        job = SharedPacked.pick(self, world)
        if job is not None:
            segment = self.book(world, job)
            started = _running(job, segment, frees=segment.blocks)
            self.replay.start(job.job_id, started, reused_tokens=world.reusable_tokens(job))
        return job

    def _observe(self, world: World) -> None:
        own = world.own_blocks()
        running = {
            job.job_id: _running(job, Segment(job.segment.new_tokens, job.blocks), frees=own[job.job_id])
            for job in world.running
        }
        answered = {key: Answered(job.produced, job.found_tokens) for key, job in world.ended.items()}
        world.ended.clear()
        self.replay.observe(running, capacity=world.capacity, answered=answered)
        here = {int.from_bytes(family.digest) for family in self.replay.ended()}
        here |= {job.document for job in world.running if job.document is not None and _has_said(job)}
        self.known.documents = here
        world.cache = self.known


def _running(job: SimulatedJob, segment: Segment, *, frees: int) -> Reserved:
    """Describe a running job, and the blocks that its end frees."""
    return Reserved(
        job.job_id,
        frees,
        0,
        output_tokens=job.produced + segment.new_tokens,
        family=None if job.document is None else Family(_TENANT, job.document.to_bytes(4)),
        text_id=job.job_id,
        reserved_blocks=segment.blocks,
        has_read=_has_said(job),
    )


def _has_said(job: SimulatedJob) -> bool:
    return job.produced > 0 or (job.sequence is not None and job.sequence.produced > 0)
