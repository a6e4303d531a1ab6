"""Head starts: the next job's run begins as soon as a run's request is over, and its claim comes after.

A tick takes longer than the engine's next iteration. What one would start now is foretold from what the last
one left, and its request takes the slot at once. The tick that stores the run's end then claims the job; one
that is already answered by then is stored with its claim. If the job is no longer to be had, its request is
stopped, and keeps its place until it has ended.

What a tick chooses for a slot that is free begins as soon as it is chosen, in the same way.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import UUID

from jobs.ids import uuid7
from jobs.scheduling.head_starts import Begun, FilledSlot, HeadStart, Outlook
from jobs.scheduling.starts import Claim
from jobs.transitions import Lease
from worker.engine import loop as engine_loop
from worker.engine.client import EngineModel
from worker.inference.leases import RunningJob
from worker.inference.prefetch import PromptPrefetcher
from worker.inference.sending.early_run import EarlyRun
from worker.inference.sending.requests import RequestMaker
from worker.metrics.runs import RunMetrics

_MAX_STOPPED: Final = 1000
# Unclaimed jobs for each slot, most of them answered: their answers are lost if the worker dies, or another
# engine takes the jobs. So there is one, and twice as many with each tick that claims all, up to these.
_MAX_AHEAD: Final = 4


class HeadStarts:
    """The head starts of one engine's worker.

    Runs begin them on the engine loop; the thread that ticks tells what became of them.

    Attributes:
        run: runs an early run on the engine loop.
        on_room: called once a stopped request has left its place.
    """

    def __init__(
        self,
        prefetcher: PromptPrefetcher,
        requests: RequestMaker,
        *,
        model: Callable[[], EngineModel | None],
        close_reservation: Callable[[Lease], None],
        threads: Executor,
        metrics: RunMetrics,
        lease_seconds: float,
    ) -> None:
        """Set up without an outlook: nothing begins before the first tick.

        Args:
            prefetcher: has the head of the queue, and its prompts.
            requests: tells which requests can be made at once.
            model: of the engine; None: it is not available.
            close_reservation: deletes the place that a stopped request kept; it may block.
            threads: where that runs.
            metrics: of this worker.
            lease_seconds: of a claim.
        """
        self._prefetcher = prefetcher
        self._requests = requests
        self._model = model
        self._close_reservation = close_reservation
        self._threads = threads
        self._metrics = metrics
        self._lease_seconds = lease_seconds
        self._lock = threading.Lock()
        self._outlook: Outlook | None = None
        self._is_ticking = self._is_outdated = False
        # Jobs that the present tick starts in slots that were free; None: nobody has asked.
        self._starting: frozenset[UUID] | None = frozenset()
        self._filled: list[FilledSlot] = []
        # By the lease of the run in whose slot each began, in the order in which they did.
        self._begun: dict[UUID, EarlyRun] = {}
        self._ticked: list[UUID] = []  # of these, those whose jobs the present tick claims
        # Those of them that the tick itself began, in slots that were free: nothing else has their place.
        self._chosen: set[UUID] = set()
        # Such ones of ticks that failed, by lease, until a tick has noted their places or they have left.
        self._strays: dict[Lease, EarlyRun] = {}
        self._noted: list[EarlyRun] = []  # those whose places the present tick notes
        # A request that kills its worker must count as a run of its job: the first one follows its claim.
        self._has_served = False
        self._claimed: dict[Lease, EarlyRun] = {}
        self._ahead = 1
        self._stopped: set[UUID] = set()  # jobs that a tick did not claim: the next one need not either
        self.run: Callable[[EarlyRun, EngineModel], object] = lambda _early, _model: None
        self.on_room: Callable[[], object] = lambda: None

    def foresee(self, outlook: Outlook | None) -> None:
        """Foretell from this from now on, as a tick has left it; None: begin nothing until the next one."""
        with self._lock:
            self._is_ticking, self._starting = False, frozenset()
            if outlook is not None:
                filled, self._filled = self._filled, []
                for each in filled:
                    if each.ended in outlook.load.running:
                        self._filled.append(each)
                        outlook = outlook.refilled(each)
            self._outlook = None if self._is_outdated else outlook

    def forget_outlook(self) -> None:
        """Begin nothing until a tick that begins later: less may be free than the last one left."""
        with self._lock:
            self._outlook, self._is_outdated = None, True

    @property
    def num_unclaimed(self) -> int:
        """Number of jobs that have begun and are not claimed; some of them are answered."""
        return len(self._begun)

    def begin(self, ended: Lease, early: EarlyRun | None = None) -> None:
        """Begin the run of the job that will probably start in the slot of this run, if that is foreseen.

        On the engine loop, once the run's own request is over, and before its end is handed in.

        Args:
            ended: the run's lease.
            early: the run, if it is early.
        """
        model = self._model()
        preview = self._prefetcher.candidates()
        begun: EarlyRun | None = None
        with self._lock:
            # Without an outlook the run is still taken for running, which is safe.
            if self._outlook is None or model is None or (early is not None and early.is_refused):
                return
            if preview is not None and len(self._begun) < self._ahead * model.capacity.max_batch_size:
                others = {each.lease.job_id for each in self._begun.values()}
                candidates = [each for each in preview.candidates if each.job.id not in others]
                if self._starting is None:
                    self._outlook, self._starting = self._outlook.ticked(candidates)
                candidates = [each for each in candidates if each.job.id not in self._starting]
                next_one = self._outlook.successor(
                    candidates, ended=ended.lease_id, is_ticking=self._is_ticking
                )
                if next_one is not None and (begun := self._early_run(next_one, model)) is not None:
                    self._begun[ended.lease_id] = begun
            slot = FilledSlot(ended.lease_id, None if begun is None else begun.head_start)
            self._filled.append(slot)
            self._outlook = self._outlook.refilled(slot)
        if begun is not None:
            self.run(begun, model)

    def begin_tick(self, ended: Collection[Lease], answered: Collection[Lease]) -> Begun:
        """Tell a tick that is about to store these runs what is in the engine; `foresee` ends it.

        Args:
            ended: leases of runs whose ends it stores.
            answered: leases of early runs whose answers are whole.
        """
        stored = {each.lease_id for each in ended}
        begun, others = list[HeadStart](), list[FilledSlot]()
        with self._lock:
            self._is_ticking, self._is_outdated, self._ticked, self._starting = True, False, [], None
            self._chosen, self._noted = set(), list(self._strays.values())
            self._has_served |= bool(ended)
            for place, early in self._begun.items():
                if place not in stored:
                    others.append(FilledSlot(place, early.head_start))
                    continue
                is_answered = early.lease in answered
                begun.append(replace(early.head_start, is_answered=is_answered))
                self._ticked.append(place)
                stored |= {early.lease.lease_id} if is_answered else set()
        return Begun(begun, others, [each.head_start for each in self._noted], self.send)

    def send(self, chosen: Sequence[HeadStart]) -> Collection[Lease]:
        """Begin the runs of jobs that the present tick has chosen for free slots, unless claims come first.

        Returns:
            The leases of those that have begun.
        """
        begun = list[EarlyRun]()
        model = self._model()
        with self._lock:
            if model is None or not self._has_served:
                return ()
            if self._outlook is not None and self._starting is None:
                self._outlook = self._outlook.started([each.ranked for each in chosen])
                self._starting = frozenset(each.lease.job_id for each in chosen)
            for each in chosen:
                if (early := self._early_run(each, model)) is not None:
                    self._begun[place := uuid7()] = early
                    self._ticked.append(place)
                    self._chosen.add(place)
                    begun.append(early)
        for early in begun:
            self.run(early, model)
        return [each.lease for each in begun]

    def settle(self, claims: Iterable[Claim], *, is_committed: bool = True) -> None:
        """Let the runs whose jobs the tick claimed go on, and stop the others that it should have claimed.

        Args:
            claims: of the tick.
            is_committed: the tick is; False: it failed, or may have.
        """
        claimed = {each.lease: each for each in claims}
        refused = list[EarlyRun]()
        with self._lock:
            chosen = [each for place, each in self._begun.items() if place in self._chosen]
            if not is_committed:
                self._strays |= {each.lease: each for each in chosen}
            runs = [self._begun.pop(place) for place in self._ticked if place in self._begun]
            self._ticked = []
            taken = [each for each in runs if each.lease in claimed]
            for each in runs:
                if each.lease not in claimed:
                    # What began in its slot during the tick has no place but this.
                    following = self._refuse_following(each.lease.lease_id)
                    each.refuse(following[-1].left if following else None)
                    refused += [each, *following]
            self._claimed |= {each.lease: each for each in taken}
            if len(runs) > len(chosen):
                self._ahead = min(2 * self._ahead, _MAX_AHEAD) if len(taken) == len(runs) else 1
        if is_committed:
            self.note_places(self._noted)
        for each in taken:
            each.confirm(claimed[each.lease])
        engine_loop.call(lambda: _tell(taken))
        self._metrics.settled(num_taken=len(taken))
        self._stop(refused)

    def leave(self, ended: Lease, stored: "Future[Any] | None" = None) -> EarlyRun | None:
        """Stop what began in the slot of a run whose end no tick stores, one after the other.

        Args:
            ended: the run's lease.
            stored: done once the run's end is stored, with the place of what is in its slot.

        Returns:
            The run that is in the slot, which needs a place if it is not over by then.
        """
        with self._lock:
            following = self._refuse_following(ended.lease_id, stored)
        self._stop(following)
        return following[-1] if following else None

    def drop(self, lease: Lease) -> None:
        """Stop what began in the slot of a run that came to nothing, and the run itself if it was early."""
        self.leave(lease)
        with self._lock:
            place = next((key for key, each in self._begun.items() if each.lease == lease), None)
            early = None if place is None else self._begun.pop(place)
            if early is not None:
                early.refuse()
        if early is not None:
            self._stop([early])

    def begun_leases(self) -> frozenset[Lease]:
        """Return the leases of the runs that have begun and are not claimed."""
        with self._lock:
            return frozenset(each.lease for each in self._begun.values())

    def take_claimed(self) -> Mapping[Lease, EarlyRun]:
        """Take the early runs whose jobs were claimed since the last call."""
        with self._lock:
            claimed, self._claimed = self._claimed, {}
            return claimed

    async def give_up(self, early: EarlyRun) -> None:
        """Let a refused run leave its place, if the engine is certainly done with it.

        Otherwise the place stays until the monitor finds that it is.
        """
        self.drop(early.lease)
        may_leave = False
        try:
            if may_leave := await early.may_leave():
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._threads, self._close_reservation, early.lease)
                with self._lock:
                    self._strays.pop(early.lease, None)
                self.on_room()
        finally:
            early.left.set_result(may_leave)

    @property
    def has_strays(self) -> bool:
        """Whether anything may be in the engine that no reservation shows: nothing else may grow there."""
        with self._lock:
            return bool(self._strays) or any(place in self._begun for place in self._chosen)

    def strays(self) -> Sequence[EarlyRun]:
        """Return the requests of failed ticks that have no places."""
        with self._lock:
            return list(self._strays.values())

    def note_places(self, strays: Sequence[EarlyRun]) -> None:
        """Note that these have places now, which a committed transaction gave them."""
        with self._lock:
            for each in strays:
                self._strays.pop(each.lease, None)
        for each in strays:
            # One that left meanwhile found no place to close.
            each.left.add_done_callback(partial(self._close_again, each.lease))

    def _close_again(self, lease: Lease, left: "Future[bool]") -> None:
        def close() -> None:
            self._close_reservation(lease)
            self.on_room()

        if left.result():
            self._threads.submit(close)

    def _early_run(self, head_start: HeadStart, model: EngineModel) -> EarlyRun | None:
        """Make the run of a job, unless its claim must be awaited."""
        ranked = head_start.ranked
        found = self._prefetcher.find(ranked.job)
        if found is None or ranked.job.num_rescues or ranked.job.id in self._stopped:
            return None
        row, prompt = found
        if (row.completion_tokens, row.started_at) != (ranked.job.completion_tokens, ranked.job.started_at):
            return None  # it has run since its row was read
        if not self._requests.can_be_early(row, prompt, model):
            return None
        size, is_first = ranked.size, row.started_at is None
        claim = Claim(head_start.lease, size.blocks, size.output_tokens, row, is_first=is_first)
        valid_until = time.monotonic() + self._lease_seconds
        job = RunningJob(head_start.lease, valid_until, row.summary_id, row.batch_id, claimed_at=float("inf"))
        return EarlyRun(head_start, claim, job)

    def _refuse_following(self, lease_id: UUID, stored: "Future[Any] | None" = None) -> list[EarlyRun]:
        """Refuse what began in the slot of a run, one after the other; the caller holds the lock.

        The place of all of them is the last one's: each other one waits for that one to leave.
        """
        following = list[EarlyRun]()
        while (early := self._begun.pop(lease_id, None)) is not None:
            following.append(early)
            lease_id = early.lease.lease_id
        for each in following:
            each.refuse(stored if each is following[-1] else following[-1].left)
        return following

    def _stop(self, refused: Sequence[EarlyRun]) -> None:
        """Stop runs that were refused; the next tick need not claim their jobs either."""
        self._prefetcher.forget(each.lease.job_id for each in refused)
        with self._lock:
            if len(self._stopped) >= _MAX_STOPPED:
                self._stopped.clear()
            self._stopped.update(each.lease.job_id for each in refused)
        self._metrics.settled(num_stopped=len(refused))
        for each in refused:
            each.stop()


def _tell(runs: Iterable[EarlyRun]) -> None:
    for each in runs:
        each.tell()
