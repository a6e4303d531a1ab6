"""Jobs that follow a reader: their order, and that no stream of them starves another job."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import timedelta
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs.engines.capacity import Budget
from jobs.scheduling.fair_share import Account, charge, rank
from jobs.scheduling.packing import Candidate, Choice, PackingPolicy, Reserved, Reuse, choose
from jobs.scheduling.prefixes.followers import choose_follower, with_reuse
from jobs.states import Lane

POLICY = PackingPolicy()
SLOTS = 4
BLOCKS = 100
DOCUMENT_TOKENS = 12_800
READ_STEPS = DOCUMENT_TOKENS / 128


def sharer(number: int, blocks: int = 10, *, reused: int = 0, waited: int = 0, **fields: object) -> Candidate:
    """A candidate that may share what it reads."""
    job = Candidate(
        UUID(int=number),
        blocks,
        steps=20,
        group="x",
        waited=timedelta(seconds=waited),
        tenant="x",
        **fields,  # type: ignore[arg-type]  # named by the caller
    )
    return with_reuse(job, Reuse(reused), is_credited=False)


def chosen(*queue: Candidate, running: int = 0, postponed: dict[UUID, float] | None = None) -> int | None:
    found = choice(*queue, running=running, postponed=postponed)
    return None if found.start is None else found.start.int


def choice(*queue: Candidate, running: int = 0, postponed: dict[UUID, float] | None = None) -> Choice:
    now = [Reserved(UUID(int=1000 + number), 10, 50) for number in range(running)]
    return choose_follower(
        queue,
        now,
        Budget(SLOTS - running, BLOCKS - 10 * running, idle=not running),
        postponed=postponed or {},
        max_batch_size=SLOTS,
        policy=POLICY,
    )


def test_a_follower_goes_before_larger_peers_and_a_waiting_job_before_none() -> None:
    assert chosen(sharer(1, 30), sharer(2, reused=DOCUMENT_TOKENS)) == 2
    assert chosen(sharer(1, is_waiting=True), sharer(2, 5)) == 2
    assert chosen(sharer(1, is_waiting=True)) is None


def test_a_follower_overtakes_an_old_job_only_for_as_long_as_reading_again_takes() -> None:
    old, follower = sharer(1, waited=1000), sharer(2, reused=DOCUMENT_TOKENS)
    assert chosen(old, follower) == 2
    assert chosen(old, follower, postponed={UUID(int=1): READ_STEPS}) == 1


def test_only_a_job_that_waited_longer_is_postponed_by_a_follower() -> None:
    follower = sharer(2, reused=DOCUMENT_TOKENS, waited=96)
    peer, old = sharer(1, waited=100), sharer(1, waited=200)
    choices = [choice(each, follower) for each in (peer, old)]
    assert [each.start for each in choices] == [follower.job_id, follower.job_id]
    assert [each.postpones for each in choices] == [None, (UUID(int=1), 4.75)]
    short = replace(follower, unlikely_tokens=16)
    assert choice(old, short).postpones == (UUID(int=1), 0.75)


def test_the_first_that_fits_reads_for_its_family_unless_a_running_job_has_what_it_reads() -> None:
    family = [sharer(1, 200, family="a"), sharer(2, 10, family="a"), sharer(3, 30, family="a")]
    assert chosen(*family) == 2
    left = [replace(each, reuse=Reuse(DOCUMENT_TOKENS)) for each in family]
    assert chosen(*left) == 2
    there = [replace(each, reuse=Reuse(DOCUMENT_TOKENS, 5, UUID(int=9))) for each in family]
    assert chosen(*there) == 3
    asking = replace(sharer(4, 5, lane=Lane.INTERACTIVE), family="a")
    assert chosen(asking, *family) == 4


def test_what_ended_jobs_left_goes_before_what_running_ones_have_and_keeps_its_room() -> None:
    there = sharer(1, 30, family="a")
    there = replace(there, reuse=Reuse(DOCUMENT_TOKENS, 5, UUID(int=9)))
    left = sharer(2, 10, family="b", reused=DOCUMENT_TOKENS)
    assert chosen(there, left) == 2
    wide = sharer(3, 80, family="b", reused=DOCUMENT_TOKENS)  # 70 are free
    assert chosen(wide, sharer(4, 30), running=3) is None
    assert chosen(sharer(4, 30), running=3) == 4
    assert chosen(replace(wide, blocks=101), sharer(4, 30)) == 4, "nothing runs"


def test_priority_interactive_jobs_and_the_turn_of_another_tenant_go_before_followers() -> None:
    follower = sharer(2, reused=DOCUMENT_TOKENS)
    assert chosen(sharer(1, priority=1), follower) == 1
    assert chosen(sharer(1, lane=Lane.INTERACTIVE), follower) == 1
    other = replace(sharer(1, 5), tenant="y", group="y")
    assert chosen(other, replace(follower, lead=DOCUMENT_TOKENS)) == 2
    assert chosen(other, replace(follower, lead=DOCUMENT_TOKENS + 1)) == 1


def test_shared_blocks_need_no_room_only_where_the_engine_credits_them() -> None:
    reuse = Reuse(DOCUMENT_TOKENS, 60, UUID(int=9))
    large, wide = sharer(1, 70), sharer(1, 80)
    assert chosen(with_reuse(large, reuse, is_credited=False), running=3) == 1  # 70 are free
    assert chosen(with_reuse(wide, reuse, is_credited=False), running=3) is None
    assert chosen(with_reuse(wide, reuse, is_credited=True), running=3) == 1


@given(st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.integers(0, 9)), max_size=30))
def test_jobs_that_share_nothing_are_chosen_as_ever(jobs: list[tuple[int, bool, int]]) -> None:
    queue = [
        sharer(number, blocks, waited=waited, lane=Lane.INTERACTIVE if is_asking else Lane.BATCH)
        for number, (blocks, is_asking, waited) in enumerate(sorted(jobs, key=lambda each: not each[1]))
    ]
    budget = Budget(SLOTS, BLOCKS, idle=True)
    now = choose_follower(queue, [], budget, postponed={}, max_batch_size=SLOTS, policy=POLICY)
    assert now == choose(queue, [], budget, max_batch_size=SLOTS, policy=POLICY)


@dataclass
class Arrival:
    """A job of the simulated engine; times and lengths in steps."""

    number: int
    at: int
    steps: int
    family: str | None
    tenant: str
    blocks: int = 1
    started: int | None = None


@dataclass
class Engine:
    """Four slots of an engine that reuses prefixes, and what it has: as planned, or in order of arrival."""

    shares: bool
    now: int = 0
    queue: list[Arrival] = field(default_factory=list)
    running: dict[int, tuple[Arrival, int, int]] = field(default_factory=dict)
    accounts: defaultdict[str, Account] = field(default_factory=lambda: defaultdict(Account))
    postponed: defaultdict[UUID, float] = field(default_factory=lambda: defaultdict(float))
    left: list[str] = field(default_factory=list)  # documents of ended jobs, of which the cache keeps two

    def waits(self, arrivals: list[Arrival]) -> dict[int, int]:
        """Run them to the end."""
        pending = sorted(arrivals, key=lambda each: (each.at, each.number))
        while pending or self.queue or self.running:
            while pending and pending[0].at <= self.now:
                self.queue.append(pending.pop(0))
            while len(self.running) < SLOTS and (job := self.pick()) is not None:
                self.start(job)
            ends = [end for _, _, end in self.running.values()]
            reads = [read_at for _, read_at, _ in self.running.values() if read_at > self.now]
            self.now = min([*ends, *reads, *(each.at for each in pending[:1])], default=self.now)
            self.end()
        return {each.number: (each.started or 0) - each.at for each in arrivals}

    def start(self, job: Arrival) -> None:
        is_here = job.family is None or job.family in self.here or job.family in self.left
        self.queue.remove(job)
        job.started = self.now
        read_at = self.now + (1 if is_here else round(READ_STEPS))
        tokens = (0 if is_here else DOCUMENT_TOKENS) + job.steps
        self.accounts[job.tenant] = charge(self.accounts[job.tenant], tokens)
        self.running[job.number] = (job, read_at, read_at + job.steps)

    def end(self) -> None:
        ended = [each[0].family for each in self.running.values() if each[2] <= self.now]
        self.running = {number: each for number, each in self.running.items() if each[2] > self.now}
        self.left = [each for each in [*self.left, *ended] if each is not None and each not in self.families]
        self.left = list(dict.fromkeys(reversed(self.left)))[1::-1]

    @property
    def families(self) -> set[str | None]:
        return {each.family for each, _, _ in self.running.values()}

    @property
    def here(self) -> set[str]:
        read = {each.family for each, read_at, _ in self.running.values() if self.now >= read_at}
        return {each for each in read if each is not None}

    @property
    def budget(self) -> Budget:
        used = sum(each.blocks for each, _, _ in self.running.values())
        return Budget(SLOTS - len(self.running), BLOCKS - used, idle=not self.running)

    def pick(self) -> Arrival | None:
        if not self.queue:
            return None
        if not self.shares:
            return self.queue[0] if self.queue[0].blocks <= self.budget.free_blocks else None
        queues: defaultdict[str, list[Arrival]] = defaultdict(list)
        for each in self.queue:
            queues[each.tenant].append(each)
        ranked = rank(queues, self.accounts, num_tokens=lambda each: each.steps, limit=len(self.queue))
        sharers = [self.sharer(each) for each in ranked]
        choice = choose_follower(
            sharers,
            [
                Reserved(UUID(int=number), job.blocks, max(0, end - self.now))
                for number, (job, _, end) in self.running.items()
            ],
            self.budget,
            postponed=self.postponed,
            max_batch_size=SLOTS,
            policy=POLICY,
        )
        if choice.start is None:
            return None
        if choice.postpones is not None:
            postponed_id, steps = choice.postpones
            self.postponed[postponed_id] += steps
        return next(each for each in ranked if each.number == choice.start.int)

    def sharer(self, job: Arrival) -> Candidate:
        readers = [each.number for each, _, _ in self.running.values() if each.family == job.family]
        reuse = Reuse()
        if job.family in self.here:
            reuse = Reuse(DOCUMENT_TOKENS, 1, UUID(int=readers[0]))
        elif job.family in self.left and not readers:
            reuse = Reuse(DOCUMENT_TOKENS)
        is_reading = job.family is not None and job.family not in self.here
        waited = timedelta(seconds=self.now - job.at)
        candidate = Candidate(
            UUID(int=job.number),
            job.blocks,
            job.steps,
            group=job.tenant,
            waited=waited,
            tenant=job.tenant,
            family=job.family,
            lead=self.accounts[job.tenant].served,
            is_waiting=is_reading and any(number < job.number for number in readers),
        )
        return with_reuse(candidate, reuse, is_credited=False)


def waits(arrivals: list[Arrival], *, shares: bool) -> dict[int, int]:
    return Engine(shares).waits(arrivals)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 200),
            st.integers(1, 40),
            st.sampled_from(["a", "b", "c", None]),
            st.sampled_from(["one", "two"]),
            st.sampled_from([1, 10, 40, 60]),
        ),
        min_size=1,
        max_size=25,
    )
)
def test_no_order_of_arrivals_starves_a_job(jobs: list[tuple[int, int, str | None, str, int]]) -> None:
    def arrivals() -> list[Arrival]:
        return [
            Arrival(number, at, steps, family and f"{tenant} {family}", tenant, blocks)
            for number, (at, steps, family, tenant, blocks) in enumerate(jobs)
        ]

    ours, in_order = waits(arrivals(), shares=True), waits(arrivals(), shares=False)
    once = READ_STEPS + 40
    assert max(ours.values()) <= max(in_order.values()) / (1 - POLICY.stretch) + 3 * once


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 6), st.floats(0.8, 2), st.integers(20, 150), st.sampled_from(["one", "two"]))
@example(4, 1.5, 100, "one")
@example(4, 1.5, 100, "two")
def test_no_stream_of_questions_about_one_document_starves_a_job(
    every: int, load: float, at: int, tenant: str
) -> None:
    steps = round(SLOTS * every * load)

    def arrivals() -> list[Arrival]:
        stream = [Arrival(number, number * every, steps, "one a", "one") for number in range(200)]
        return [*stream, Arrival(1000, at, steps, None, tenant)]

    ours, in_order = waits(arrivals(), shares=True), waits(arrivals(), shares=False)
    assert ours[1000] <= in_order[1000] / (1 - POLICY.stretch) + 2 * (READ_STEPS + steps)
