"""The monitor of one engine: registers its capacity, pauses claims while it is down, ends drains."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from jobs import telemetry
from jobs.database import database_now, transaction
from jobs.diagnostics import Finding
from jobs.engines import registry, reservations
from jobs.engines.identity import EngineIdentity, EngineNameTakenError
from jobs.errors import EngineBusyError, EngineError, EngineMisconfiguredError, EngineUnavailableError
from jobs.models import Reservation
from jobs.prompts.abilities import TOOLS
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSettings, EngineSide, Settings
from worker.engine.abilities import Abilities
from worker.engine.address import address_of
from worker.engine.client import CANARY_SECONDS, EngineClient, EngineModel
from worker.engine.deadlines import deadlines_for
from worker.engine.gauges import Gauges
from worker.engine.kinds import is_triton, triton_of
from worker.engine.probe import probe
from worker.heartbeat import Heartbeat
from worker.inference.draining import DrainMonitor, OpenRequests
from worker.inference.run import Run
from worker.loop import Loop

_LOOK_SECONDS: Final = 1.0
# While reservations drain, jobs may wait for their blocks.
_DRAIN_LOOK_SECONDS: Final = 0.2
_DRAIN_BEGINS_WITHIN_SECONDS: Final = 2.0
_SEEN_SECONDS: Final = 5.0
# Capacity is read again: a real engine reports its pool only after its first iteration.
_DESCRIBE_SECONDS: Final = 30.0
# While an engine cannot be used, the log says so again after this.
_REPEAT_SECONDS: Final = 60.0
# A probe costs a request: one that found a fault is repeated after this.
_PROBE_AGAIN_SECONDS: Final = 5.0
# An engine that answers probes and refuses jobs is paused for a second, then for twice as long, up to this.
_MAX_HOLD_SECONDS: Final = 30.0


def shares_prefix(model: EngineModel, settings: EngineSettings) -> bool:
    """Return True if requests that run together share the cache of what they begin with."""
    able, told = model.served.abilities, settings.reuses_prefix
    return able.shares_prefix and (able.reuses_prefix if told is None else told)


def credits_reuse(able: Abilities, settings: EngineSettings) -> bool:
    """Return True if a request starts without room for the blocks that it shares with running ones."""
    return able.credits_reuse if settings.credits_reuse is None else settings.credits_reuse


def _server_of(model: EngineModel) -> tuple[str, str, str]:
    """Identify the probed server: another model or kind needs another probe, another size does not."""
    return model.served.kind, model.served.name, model.served.root


class EngineMonitor:
    """The one place that decides whether this worker's engine may receive jobs."""

    def __init__(
        self,
        settings: Settings,
        sessions: sessionmaker[Session],
        tokenizer: Tokenizer,
        heartbeat: Heartbeat,
    ) -> None:
        """Build it, without talking to the engine.

        Args:
            settings: of this worker.
            sessions: of its heartbeats.
            tokenizer: that counts the engine's prompts.
            heartbeat: of this worker.
        """
        # A server that decodes tokens itself leaves out what calls are found by.
        self._hides_calls = tokenizer.calls is not None and tokenizer.calls.are_hidden
        self._side = EngineSide(engine=settings.engine, triton=settings.triton, tokenizer=settings.tokenizer)
        self._tokenizer = tokenizer
        self._heartbeat = heartbeat
        self._settings = settings.engine
        self._drain_span = timedelta(seconds=settings.jobs.drain_seconds)
        self._sessions = sessions
        self._client = EngineClient(settings.triton, settings.engine, end_id=tokenizer.end_id)
        self._drain_monitor = DrainMonitor(
            sessions,
            settings.engine.name,
            limit=self._drain_limit,
            answers=self._answers,
        )
        self._model: EngineModel | None = None
        self._changed = threading.Lock()
        self._must_answer = False
        self._refusal: EngineError | None = None
        self._num_refusals = 0  # since the last answer to a job
        self._num_probes = 0
        self._held_until = float("-inf")
        triton_url = triton_of(settings.triton, settings.engine).url
        address = f"grpc://{triton_url}" if is_triton(settings.engine) else settings.engine.url
        self._not_ready = f"the engine at {address} does not answer, or is not ready"
        self._probed: tuple[str, str, str] | None = None  # the last server that passed
        self._following: set[Run] = set()
        self._identity: EngineIdentity | None = None  # that the engine's row has, as this worker wrote it
        self._paused_for: str | None = None
        self._logged_at = self._probe_again_at = float("-inf")
        self._drains_until = float("-inf")
        self._seen_at = self._described_at = float("-inf")
        self._was_shared = False
        self._spare: int | None = None
        self.on_ready: list[Loop] = []
        self.loop = Loop("engine-monitor", self.run_once, interval=_LOOK_SECONDS)

    @property
    def model(self) -> EngineModel | None:
        """The engine's model and capacity; None while it may not receive jobs."""
        with self._changed:
            return self._model

    @property
    def identity(self) -> EngineIdentity | None:
        """What the engine is, as its row says; None until this worker has registered it."""
        return self._identity

    @property
    def num_probes(self) -> int:
        """How many probes after refusals the engine has answered."""
        return self._num_probes

    def suspend(self, error: EngineError) -> None:
        """Give the engine no jobs until the next successful probe. Called when a stream cannot reach it.

        Args:
            error: the stream's. If the engine refuses requests although it looks ready, an answer must show
                the end of that.
        """
        with self._changed:
            if isinstance(error, EngineMisconfiguredError | EngineBusyError) and self._model is not None:
                self._hold(error)
            self._model = None
        self.loop.wake()

    def note_answer(self) -> None:
        """Forget refusals: the engine has answered a job."""
        with self._changed:
            self._num_refusals = 0

    def _hold(self, error: EngineError) -> None:
        """Pause for longer with each refusal in a row.

        A load balancer can lead each probe to a good replica and each job to a bad one: every second time the
        engine gets jobs again without a probe.
        """
        seconds = min(_MAX_HOLD_SECONDS, 2.0 ** (self._num_refusals - 1)) if self._num_refusals else 0.0
        self._held_until = time.monotonic() + seconds
        self._num_refusals = min(self._num_refusals + 1, 100)
        self._must_answer = self._num_refusals % 2 == 1
        self._refusal = error

    def begin_stop(self) -> None:
        """Stop probing, and interrupt a call that waits for a silent engine."""
        self.loop.begin_stop()
        self._client.interrupt()

    def close(self) -> None:
        """Close the connection to the engine. The loop must have ended."""
        self._client.close()

    def run_once(self) -> None:
        """Update the engine's row and delete the reservations that have drained."""
        if self.model is None or time.monotonic() - self._described_at > _DESCRIBE_SECONDS:
            self._describe()
        elif self._is_silent():
            self._pause(self._not_ready)
        if self.model is None:
            return
        gauges = self._watch_drains()
        self._note_seen(gauges)

    @contextmanager
    def following(self, run: Run, *, arrives_at_once: bool) -> Iterator[None]:
        """Count the run's request among those that the engine has, once it is sent. On the engine loop.

        Args:
            run: that follows its stream.
            arrives_at_once: what is sent is in the engine itself a moment later. Otherwise, as where models
                before it encode a text, only output proves that.
        """
        run.arrives_at_once = arrives_at_once
        self._following.add(run)
        try:
            yield
        finally:
            self._following.discard(run)
            run.end_request()

    def expect_drain(self) -> None:
        """Look closely for a while, as a reservation is about to drain. Any thread may call it."""
        self._drains_until = time.monotonic() + _DRAIN_BEGINS_WITHIN_SECONDS
        self.loop.wake()

    def _watch_drains(self) -> Gauges | None:
        """Read the gauges, and delete the reservations that have drained by them."""
        before = self._open_requests()
        gauges = self._client.gauges()
        after = self._open_requests()
        # The gauges count a request only if the engine had it when they were read, and may count any other.
        num_sent = max(before.num_sent, after.num_sent)
        ours = OpenRequests(before.at, before.inside & after.inside, num_sent)
        if self._drain_monitor.check(gauges, ours):
            self._wake_others()
        is_expected = time.monotonic() < self._drains_until
        if is_expected or self._drain_monitor.is_waiting:
            self.loop.wake_within(_DRAIN_LOOK_SECONDS)
        return gauges

    def _open_requests(self) -> OpenRequests:
        now = time.monotonic()
        sent = {each: each.sent_at for each in self._following.copy()}
        inside = frozenset(
            (each.lease.lease_id, sent_at)
            for each, sent_at in sent.items()
            if sent_at is not None and each.is_inside(now)
        )
        return OpenRequests(now, inside, sum(each is not None for each in sent.values()))

    def _wake_others(self) -> None:
        for loop in self.on_ready:
            loop.wake()

    def _describe(self) -> None:
        if self._refusal is not None and time.monotonic() < self._held_until:
            self._pause(self._refusal.message, said=self._refusal.said)
            return
        if self._is_silent():
            self._pause(self._not_ready)
            return
        try:
            model = self._read_model()
        except EngineError as error:
            if self.model is None or not self._is_streaming():
                self._pause(error.message, said=error.said)
            return
        if model != self.model:
            if _server_of(model) != self._probed and not self._is_usable():
                return
            self._probed = _server_of(model)
            self._register(model)
        self._described_at = time.monotonic()

    def _is_silent(self) -> bool:
        """Return True if the engine neither answers nor streams: one with many streams may answer late."""
        return not self._client.is_ready() and not self._is_streaming()

    def _is_streaming(self) -> bool:
        """Return True if it sent tokens of a job just now."""
        now = time.monotonic()
        return any(each.has_output and each.is_inside(now) for each in self._following.copy())

    def _is_usable(self) -> bool:
        """Return True if a probe finds no fault that would spoil answers or fail jobs."""
        if time.monotonic() < self._probe_again_at:
            return False
        faults = list[Finding]()
        for each in probe(self._side, self._tokenizer, self._client):
            if self._client.is_interrupted:  # this worker stops: what was found may be due to that
                return False
            if each.status == "failed" and not (each.facts.get("is_late") and self._is_busy()):
                faults.append(each)
        if faults:
            self._probe_again_at = time.monotonic() + _PROBE_AGAIN_SECONDS
            self._pause("; ".join(f"{each.name}: {each.detail} ({each.advice})" for each in faults))
        return not faults

    def _read_model(self) -> EngineModel:
        model = self._client.describe()
        if self._must_answer:
            if error := self._client.try_answer(model.served, timeout=CANARY_SECONDS):
                raise error
            self._must_answer = False
            self._num_probes += 1
        return model

    def _is_busy(self) -> bool:
        """Return True if requests occupy the engine, which then may answer none of ours for a while."""
        gauges = self._client.gauges()
        return gauges is not None and gauges.num_inside > 0

    def _takes(self, model: EngineModel) -> frozenset[str]:
        """Return what jobs may ask for: of the engine, and of this worker, which finds calls in answers."""
        abilities = model.served.abilities
        finds_calls = abilities.gives_ids or not self._hides_calls
        return abilities.takes | ({TOOLS} if finds_calls else frozenset())

    def _register(self, model: EngineModel) -> None:
        identity = EngineIdentity(
            self._settings.model,
            model.served.root or model.served.name,
            self._tokenizer.fingerprint,
            address_of(self._side),
        )
        # Before the commit: a heartbeat in between must not write the old refusal.
        refusal, self._heartbeat.refusal = self._heartbeat.refusal, None
        try:
            with transaction(self._sessions) as session:
                registry.register(
                    session,
                    self._settings.name,
                    self._settings.model,
                    model.capacity,
                    now=database_now(session),
                    shares_prefix=shares_prefix(model, self._settings),
                    takes=self._takes(model),
                    adapters=model.served.abilities.adapters,
                    identity=identity,
                    worker_id=self._heartbeat.claimant.worker_id,
                )
                registry.declare(session, self._settings.name, model.served.tensors)
                self._heartbeat.report(session, refusal=None)
        except EngineNameTakenError as error:
            self._identity, self._heartbeat.refusal = None, error.message
            self._pause(error.message)
            return
        except BaseException:
            self._heartbeat.refusal = refusal
            raise
        self._identity, self._spare = identity, None  # as the row now has it
        with self._changed:
            self._model = model
        self._paused_for = None
        telemetry.logger().info(
            telemetry.ENGINE_READY,
            engine=self._settings.name,
            max_batch_size=model.capacity.max_batch_size,
            max_blocks=model.capacity.max_blocks,
            tokens_per_block=model.capacity.tokens_per_block,
        )
        self._wake_others()

    def _pause(self, reason: str, *, said: str = "") -> None:
        with self._changed:
            self._model = None
        now = time.monotonic()
        is_new = reason != self._paused_for
        if is_new or now - self._logged_at >= _REPEAT_SECONDS:  # an engine may load for minutes
            self._logged_at = now
            telemetry.logger().warning(
                telemetry.ENGINE_PAUSED, engine=self._settings.name, reason=reason, engine_message=said
            )
        if not is_new:
            return
        if self._identity is None:
            self._heartbeat.refusal = reason
            self._heartbeat.loop.wake()
        else:
            with transaction(self._sessions) as session:
                registry.pause(session, self._settings.name, reason, identity=self._identity)
        self._paused_for = reason

    def _note_seen(self, gauges: Gauges | None) -> None:
        """Record that the engine is alive every few seconds, and its spare blocks whenever they change."""
        with transaction(self._sessions) as session:
            spare = self._spare_blocks(session, gauges)
            if spare == self._spare and time.monotonic() - self._seen_at < _SEEN_SECONDS:
                return
            is_ours = registry.mark_ready(
                session,
                self._settings.name,
                now=database_now(session),
                spare_blocks=spare,
                identity=self._identity,
            )
        if not is_ours:
            # Another engine took the name while this one was silent; registering finds out which.
            self._identity = None
            self.suspend(EngineUnavailableError())
            return
        self._seen_at, self._spare = time.monotonic(), spare

    def _spare_blocks(self, session: Session, gauges: Gauges | None) -> int | None:
        """Return the engine's free blocks while others use it too, None while all of it is ours.

        Only two consecutive readings prove that it is shared. While we reserve nothing, the gauges may be
        stale and are ignored. Without a reading the last one counts: a busy engine is late with its gauges.
        """
        booked = reservations.booked()
        mine = select(booked.c.blocks).where(booked.c.engine_name == self._settings.name)
        reserved = session.scalar(mine)
        if gauges is None:
            return self._spare if reserved else None
        is_shared = bool(reserved and gauges.used_blocks > reserved)
        was_shared, self._was_shared = self._was_shared, is_shared
        return gauges.free_blocks if is_shared and was_shared else None

    def _answers(self) -> bool:
        model = self.model
        return model is not None and self._client.answers(model.served, timeout=CANARY_SECONDS)

    def _drain_limit(self, reservation: Reservation) -> timedelta:
        """Return how long a reservation drains before an answer proves its request's end.

        If the engine cannot stop a request early, it may run for as long as all its tokens take.
        """
        model = self.model
        if model is None or model.served.abilities.can_cancel:
            return self._drain_span
        held = reservation.blocks * model.capacity.tokens_per_block
        deadlines = deadlines_for(
            prompt_tokens=max(0, held - reservation.output_tokens),
            max_tokens=reservation.output_tokens,
            capacity=model.capacity,
            time_scale=self._settings.time_scale,
        )
        return max(self._drain_span, timedelta(seconds=deadlines.total))
