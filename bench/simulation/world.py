"""What a policy sees when it chooses: the queue, the reservations, outputs of similar jobs, the accounts."""

from collections import abc, defaultdict
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from bench.simulation.engine import Sequence
from bench.simulation.engine_model import A6000, EngineModel
from bench.simulation.prefix_cache import PrefixCache, referenced
from bench.simulation.workloads import Spec
from jobs.engines.capacity import Budget, Capacity, ReservedBlocks, free_budget
from jobs.prompts.prefixes import hashed_tokens
from jobs.scheduling.fair_share import Account, charge, lift
from jobs.scheduling.prediction import Peers
from jobs.scheduling.segments import Segment

_RECENT = 200  # as in `jobs.scheduling.output_history`
NOTHING = Segment(new_tokens=0, blocks=0)


@dataclass(slots=True, eq=False)
class SimulatedJob:
    """A job during the simulation; times in seconds since the start.

    Attributes:
        number: its place in the workload.
        spec: its true sizes; only the oracle may look at its output.
        produced: tokens generated in ended segments.
        segment: the running or last segment.
        blocks: reserved while it is on the engine.
        sequence: its request inside the engine; None: it waits, in the queue or in its slot.
        overtakes: the job whose shadow time it respects.
        started_at: when its first iteration began.
        finished_at: when its last token was generated.
        num_segments: requests so far.
        num_yields: times it returned to the queue.
        charged: tokens charged to its tenant's account.
        recomputed_tokens: that the engine read again because it continued.
        reusable_tokens: of its document, that the engine was expected to have when it started.
        found_tokens: of its document, that the engine had.
        postponed_steps: for how long younger jobs that share what the engine has were let go first.
        delays: the job that it was let go before; None: none, or only its cohort.
        expected_output: when it was let go first.
        held: blocks that it is booked to share, while it is on the engine.
    """

    number: int
    spec: Spec
    produced: int = 0
    segment: Segment = NOTHING
    blocks: int = 0
    sequence: Sequence | None = None
    overtakes: "SimulatedJob | None" = None
    started_at: float | None = None
    finished_at: float | None = None
    num_segments: int = 0
    num_yields: int = 0
    charged: int = 0
    recomputed_tokens: int = 0
    reusable_tokens: int = 0
    found_tokens: int = 0
    postponed_steps: float = 0.0
    delays: "SimulatedJob | None" = None
    expected_output: int = 0
    held: int = 0

    @property
    def job_id(self) -> UUID:
        """Job id for the domain's functions."""
        return UUID(int=self.number)

    @property
    def held_tokens(self) -> int:
        """Tokens that its next segment sends as prompt."""
        return self.spec.prompt_tokens + self.produced

    @property
    def left(self) -> int:
        """Tokens that it may still generate."""
        return self.spec.max_tokens - self.produced

    @property
    def document(self) -> int | None:
        """Number of its document, as the cache asks for it."""
        return self.spec.document

    @property
    def has_read(self) -> bool:
        """True if its document is in the cache, and stays there while it runs."""
        return self.held > 0 or (self.sequence is not None and self.sequence.held > 0)


class KnownDocuments(Protocol):
    """What an engine is known to have."""

    def found(self, document: int | None) -> int:
        """Return how many of the document's blocks can be reused, at least."""


@dataclass(slots=True)
class World:
    """The queue in order of arrival and the jobs on the engine in order of start.

    Attributes:
        chunk: most prompt tokens of one iteration.
        outputs: prompt and output tokens of ended jobs by tenant and template, the newest last.
        accounts: what each tenant was served.
        cache: what the engine is known to have of documents: by default, all that it has.
        ended: jobs that ended, by id.
        credits_reuse: a job starts without room for what it reuses.
        model: of the engine; the product knows it from its profile.
    """

    capacity: Capacity
    chunk: int
    now: float = 0.0
    queue: list[SimulatedJob] = field(default_factory=list)
    running: list[SimulatedJob] = field(default_factory=list)
    outputs: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    accounts: dict[str, Account] = field(default_factory=dict)
    cache: KnownDocuments = field(default_factory=PrefixCache)
    ended: dict[UUID, SimulatedJob] = field(default_factory=dict)
    credits_reuse: bool = False
    model: EngineModel = A6000
    _peers: dict[tuple[str, str], tuple[int, Peers]] = field(default_factory=dict)

    @property
    def budget(self) -> Budget:
        """What the reservations leave free."""
        return free_budget(self.capacity, [ReservedBlocks(each) for each in self.own_blocks().values()])

    def own_blocks(self) -> dict[UUID, int]:
        """Return what each running job's end would free: shared blocks go with the last of their jobs."""
        found = {each.job_id: each.blocks - each.held for each in self.running}
        shared = referenced(self.running)
        for each in sorted(self.running, key=self.steps_left, reverse=True):
            if each.held:
                found[each.job_id] += shared.pop(each.document or 0, 0)
        return found

    def reusable_tokens(self, job: SimulatedJob) -> int:
        """Return how many tokens of its document the job is known to find: as far as prompts are hashed."""
        found = self.cache.found(job.document) * self.capacity.tokens_per_block
        return hashed_tokens(min(job.spec.shared_tokens, found), of=job.spec.prompt_tokens) if found else 0

    def reusable(self, job: SimulatedJob) -> int:
        """Return how many blocks of its document the job is known to find."""
        return self.reusable_tokens(job) // self.capacity.tokens_per_block

    def reader(self, document: int | None) -> SimulatedJob | None:
        """Find a running job that has read this document."""
        if document is None:
            return None
        return next((each for each in self.running if each.document == document and each.has_read), None)

    def is_waiting(self, job: SimulatedJob) -> bool:
        """Return True if an earlier job is just reading the document that this one needs."""
        mine = [each for each in self.running if each.document is not None and each.document == job.document]
        return any(each.number < job.number for each in mine) and not any(each.has_read for each in mine)

    def share(self, job: SimulatedJob, blocks: int) -> None:
        """Book that a job which starts shares blocks with the reader of its document."""
        job.held = blocks
        if blocks and (reader := self.reader(job.document)) is not None:
            reader.held = max(reader.held, blocks)

    def peers(self, job: SimulatedJob) -> abc.Sequence[int]:
        """Return recent outputs of the tenant and template for such prompts, ascending."""
        key = (job.spec.tenant, job.spec.template)
        ended = self.outputs[key]
        if key not in self._peers or self._peers[key][0] != len(ended):
            self._peers[key] = (len(ended), Peers.of(ended[: -_RECENT - 1 : -1]))
        return self._peers[key][1].near(job.spec.prompt_tokens)

    def steps(self, job: SimulatedJob, segment: Segment) -> int:
        """Count the iterations of a segment: its chunks, then one per token."""
        return -(-job.held_tokens // self.chunk) + segment.new_tokens

    def steps_left(self, job: SimulatedJob) -> int:
        """Count the iterations left in a job's reservation; 0 while it waits there."""
        if job.sequence is None:
            return 0
        chunks = -(-max(0, job.sequence.prompt_tokens - job.sequence.kv) // self.chunk)
        return chunks + job.segment.new_tokens - job.sequence.produced

    def join(self, job: SimulatedJob) -> None:
        """Queue the job; lift a returning tenant's account to the level of the others."""
        tenant = job.spec.tenant
        active = {each.spec.tenant for each in (*self.queue, *self.running)}
        if tenant not in active:
            others = [self.accounts[name] for name in active]
            self.accounts[tenant] = lift(self.accounts.get(tenant, Account()), others)
        self.queue.append(job)

    def start(self, job: SimulatedJob, segment: Segment) -> None:
        """Start the job on the engine and charge its reservation."""
        self.queue.remove(job)
        self.running.append(job)
        job.segment, job.blocks = segment, segment.blocks
        job.reusable_tokens = self.reusable_tokens(job)
        self._charge(job, job.held_tokens - job.reusable_tokens + segment.new_tokens)

    def give_back(self, job: SimulatedJob) -> None:
        """Return the job to its old place in the queue, keeping its tokens."""
        self.running.remove(job)
        self.queue.append(job)
        self.queue.sort(key=lambda each: (each.spec.arrives_at, each.number))
        job.num_yields += 1
        job.held, job.delays = 0, None

    def end(self, job: SimulatedJob) -> None:
        """End the job, record its output and settle its account."""
        self.running.remove(job)
        self._charge(job, job.held_tokens - job.reusable_tokens)
        if job.delays is not None:
            unused = job.expected_output - job.produced
            job.delays.postponed_steps -= unused / self.capacity.max_batch_size
        self.ended[job.job_id] = job
        self.outputs[job.spec.tenant, job.spec.template].append((job.spec.prompt_tokens, job.produced))

    def _charge(self, job: SimulatedJob, num_tokens: int) -> None:
        """Set the tokens charged to the job's tenant for this job to `num_tokens` in all."""
        tenant = job.spec.tenant
        self.accounts[tenant] = charge(self.accounts[tenant], num_tokens - job.charged)
        job.charged = num_tokens
