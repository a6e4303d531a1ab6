"""The heartbeat: a worker process reports itself, and hands back what dead processes of its host held."""

import os
import socket
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from jobs import lifecycle, telemetry
from jobs.database import transaction
from jobs.engines import workers
from jobs.engines.workers import WorkerReport
from jobs.ids import uuid7
from jobs.starting import Claimant
from worker import process_identity
from worker.loop import Loop
from worker.rescue import Rescuer

_INTERVAL_SECONDS: Final = 5.0
_LOG_AGAIN_SECONDS: Final = 60.0
_NO_ENGINE_YET: Final = "the worker has not reached the engine yet"


class Heartbeat:
    """The row of this process in `workers`, and the loop that keeps it fresh.

    Attributes:
        claimant: this process, as its reservations name it.
        refusal: why the worker could not register its engine yet; None: it has, or it feeds none.
        on_rescued: called when jobs of a dead process wait again.
        loop: reports, and looks for dead processes of this host.
    """

    def __init__(
        self,
        role: str,
        sessions: sessionmaker[Session],
        *,
        max_rescues: int,
        engine_name: str | None = None,
        model: str | None = None,
    ) -> None:
        """Set up without reporting.

        Args:
            role: `inference` or `service`.
            sessions: of the database.
            max_rescues: a job that was rescued this often fails.
            engine_name: the engine that this worker is to feed; None: none.
            model: that it is to serve; None: none.
        """
        self._sessions = sessions
        self._rescuer = Rescuer(sessions, max_rescues=max_rescues)
        self._host = process_identity.this_host()
        name = f"{socket.gethostname()}:{os.getpid()}"
        self._report = WorkerReport(
            uuid7(), role, name, process_identity.this_process(), engine_name=engine_name, model=model
        )
        self._loops: Collection[Loop] = ()
        self._logged_late: dict[str, float] = {}
        self.refusal: str | None = None if engine_name is None else _NO_ENGINE_YET
        self.on_rescued: Callable[[], object] = lambda: None
        self.claimant = Claimant(name, self._report.id)
        self.loop = Loop("heartbeat", self.run_once, interval=_INTERVAL_SECONDS)

    def watch(self, loops: Collection[Loop]) -> None:
        """Report these loops of the process when they are late."""
        self._loops = loops

    def late_loops(self) -> tuple[str, ...]:
        """Return the names of this process's loops that hang or keep failing."""
        return tuple(sorted(each.name for each in self._loops if each.is_late))

    def report(self, session: Session, *, refusal: str | None) -> None:
        """Write this process's row in the caller's transaction.

        Args:
            session: the caller's transaction.
            refusal: why this worker does not feed its engine; None: it does.
        """
        workers.report(session, replace(self._report, refusal=refusal, late_loops=self.late_loops()))

    def run_once(self) -> None:
        """Report this process; if a process of this host has died, hand back what it held."""
        with transaction(self._sessions) as session:
            self.report(session, refusal=self.refusal)
            others = workers.processes_like(session, self._host) if self._host else {}
        self._log_late()
        dead = [worker_id for worker_id, process in others.items() if process_identity.has_ended(process)]
        if dead:
            self._hand_back(dead)

    def leave(self) -> None:
        """Delete this process's row, as it stops; its loop has ended. If that fails, others see it age."""
        try:
            with transaction(self._sessions) as session:
                workers.forget(session, [self._report.id])
        except SQLAlchemyError as error:
            telemetry.logger().warning(telemetry.LOOP_FAILED, loop="heartbeat", error=type(error).__name__)

    def _hand_back(self, dead: Sequence[UUID]) -> None:
        with transaction(self._sessions) as session:
            ended = lifecycle.end_leases(session, dead)
            workers.forget(session, dead if ended.are_all else ())
        if ended.job_ids:
            while self._rescuer.rescue():
                pass
            self.on_rescued()

    def _log_late(self) -> None:
        """Log each late loop once a minute, for as long as it is late."""
        now = time.monotonic()
        self._logged_late = {name: self._logged_late.get(name, float("-inf")) for name in self.late_loops()}
        for name, logged_at in self._logged_late.items():
            if now - logged_at >= _LOG_AGAIN_SECONDS:
                self._logged_late[name] = now
                telemetry.logger().error(telemetry.LOOP_LATE, loop=name)
