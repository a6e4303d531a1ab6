"""The size of a job's reservation: its prompt and the output that its peers make likely."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Protocol, Self
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.engines import registry
from jobs.engines.capacity import ITERATION_TOKENS, Capacity
from jobs.engines.identity import EngineIdentity
from jobs.engines.registry import EngineRow
from jobs.scheduling.output_history import Group, History, PeersOnce
from jobs.scheduling.packing import PackingPolicy
from jobs.scheduling.prediction import PredictionPolicy, likely
from jobs.scheduling.prefixes.prefix_replay import PrefixReplay
from jobs.scheduling.segments import next_segment, whole_blocks
from jobs.settings import Settings
from jobs.starting import UNKNOWN, Claimant


@dataclass(frozen=True, slots=True)
class ClaimPolicy:
    """The policy that a worker claims under.

    Attributes:
        lease: how long without renewal until the job may be rescued.
        max_rescues: a job rescued this often runs alone.
        packing: what the packing may do to a job that waits.
        prediction: how boldly outputs are predicted; None: every job reserves its whole `max_tokens`.
        history: the source of predictions.
        preempts: batch jobs make room for interactive ones; False: ending one early would free nothing.
        replay: what the engine has of prompts, so that jobs which begin alike follow each other; None: its
            requests share nothing.
        claimant: who claims.
        identity: what the engine is, as the claimant found it; it claims nothing if the engine's row says
            otherwise. None: whatever that says.
    """

    lease: timedelta
    max_rescues: int
    packing: PackingPolicy = field(default_factory=PackingPolicy)
    prediction: PredictionPolicy | None = field(default_factory=PredictionPolicy)
    history: History = field(default_factory=History)
    preempts: bool = True
    replay: PrefixReplay | None = None
    claimant: Claimant = UNKNOWN
    identity: EngineIdentity | None = None

    def may_feed(self, engine: EngineRow) -> bool:
        """Return True if the engine's row is of the engine that the claimant found."""
        return self.identity is None or self.identity == registry.identity_of(engine)

    @classmethod
    def of(cls, settings: Settings, *, history: History) -> Self:
        """Build the policy of workers with these settings."""
        prediction = PredictionPolicy(reuses_prefix=settings.engine.reuses_prefix is not False)
        return cls(
            lease=timedelta(seconds=settings.jobs.lease_seconds),
            max_rescues=settings.jobs.max_rescues,
            prediction=prediction if settings.engine.reserve_predicted else None,
            history=history,
        )


def policy_on(
    policy: ClaimPolicy, *, can_resume: bool, reuses_prefix: bool, replay: PrefixReplay | None = None
) -> ClaimPolicy:
    """Adapt a policy to what the engine can do.

    Where no run can continue another one, jobs reserve everything they may need, and none is preempted, since
    it would have to start over. Where tokens are read again, long prompts reserve more. With a replay, jobs
    that begin alike follow each other.
    """
    policy = policy if replay is policy.replay else replace(policy, replay=replay)
    if not can_resume:
        return replace(policy, prediction=None, preempts=False)
    if policy.prediction is None or policy.prediction.reuses_prefix == reuses_prefix:
        return policy
    return replace(policy, prediction=replace(policy.prediction, reuses_prefix=reuses_prefix))


class Sizable(Protocol):
    """What a prediction needs to know of a job; a row of `jobs` has it."""

    @property
    def tenant_id(self) -> UUID:
        """Owner of the job."""

    @property
    def task(self) -> str:
        """Task of the job; jobs of one task have outputs of similar length."""

    @property
    def adapter(self) -> str | None:
        """The adapter that it asks for, whose outputs have lengths of their own."""

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt, once counted."""

    @property
    def max_tokens(self) -> int:
        """Most tokens that it may generate."""

    @property
    def is_whole(self) -> bool:
        """True if one request must generate all of it."""

    @property
    def num_yields(self) -> int:
        """Times it left the engine so that others could continue."""


def group_of(job: Sizable) -> Group:
    """Return what the job has in common with its peers."""
    return job.tenant_id, job.task, job.adapter


@dataclass(frozen=True, slots=True)
class ReservationSize:
    """The size of a reservation and what it covers.

    Attributes:
        blocks: of the KV cache.
        output_tokens: generated tokens in all, including those of earlier runs.
        steps: engine iterations until its expected end.
        unlikely_tokens: of the output, those that half of its peers did not need.
    """

    blocks: int
    output_tokens: int
    steps: int
    unlikely_tokens: int = 0


@dataclass(slots=True)
class Sizer:
    """Sizes reservations within one transaction; reads each tenant's outputs of a task only once.

    Jobs of a batch are often of one size: it is computed once.
    """

    session: Session
    capacity: Capacity
    policy: ClaimPolicy
    _peers: PeersOnce = field(init=False)
    _sizes: dict[tuple[object, ...], ReservationSize] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Start without any peers read."""
        self._peers = PeersOnce(self.session, self.policy.history)

    def read_peers(self, jobs: Iterable[Sizable]) -> None:
        """Read at once what the sizes of all these jobs depend on."""
        if self.policy.prediction is not None:
            self._peers.read({group_of(job) for job in jobs})

    def size(self, job: Sizable, *, produced: int) -> ReservationSize:
        """Size the reservation of a job that has generated `produced` tokens.

        Covers at least one more token, and at most all it may need.
        """
        yielded = bool(job.num_yields)
        key = (*group_of(job), job.prompt_tokens, job.max_tokens, job.is_whole, yielded, produced)
        if (found := self._sizes.get(key)) is None:
            found = self._sizes[key] = self._size(job, produced)
        return found

    def _size(self, job: Sizable, produced: int) -> ReservationSize:
        prompt_tokens, left = job.prompt_tokens or 0, job.max_tokens - produced
        likely_tokens = left
        if self.policy.prediction is None or job.num_yields or job.is_whole:
            segment = whole_blocks(
                self.capacity, held_tokens=prompt_tokens + produced, new_tokens=left, left=left
            )
        else:
            peers = self._peers.of(group_of(job)).near(prompt_tokens)
            likely_tokens = likely(peers, produced=produced) or left
            segment = next_segment(
                self.capacity,
                peers,
                prompt_tokens=prompt_tokens,
                produced=produced,
                max_tokens=job.max_tokens,
                policy=self.policy.prediction,
            )
        return ReservationSize(
            blocks=segment.blocks,
            output_tokens=produced + segment.new_tokens,
            steps=steps(prompt_tokens + produced, segment.new_tokens),
            unlikely_tokens=max(0, segment.new_tokens - likely_tokens),
        )


def steps(prompt_tokens: int, new_tokens: int) -> int:
    """Count the engine iterations needed to read and generate this many tokens."""
    return -(-prompt_tokens // ITERATION_TOKENS) + new_tokens
