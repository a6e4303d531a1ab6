"""An end that is stored alone leaves the place of its slot to the request that is in it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from claiming.desks import STOPPED, state_of
from jobs.ids import uuid7
from jobs.models import Reservation
from jobs.scheduling import previews
from jobs.scheduling.head_starts import HeadStart
from jobs.scheduling.starts import Claim
from jobs.settings import Settings
from jobs.transitions import Lease
from support import ENGINE, POLICY, output_of
from worker.inference.leases import RunningJob
from worker.inference.lone_ends import EndedRun, LoneEnds, StoredEnd
from worker.inference.sending.early_run import EarlyRun


def test_the_request_in_the_slot_of_an_end_that_is_stored_alone_keeps_its_place(
    sessions: sessionmaker[Session], feeding: Callable[..., Settings], running: list[Claim]
) -> None:
    ending = running[0]
    with sessions() as session:
        ranked = previews.preview_claims(session, ENGINE, POLICY).candidates[0]
    begun = HeadStart(ranked, Lease(ranked.job.id, uuid7()))
    left = EarlyRun(begun, ending, RunningJob(begun.lease, float("inf")))
    stored: Future[StoredEnd] = Future()
    ended = EndedRun(RunningJob(ending.lease, float("inf")), STOPPED, output_of("x"), 0.0, stored, left=left)
    ends = LoneEnds(feeding(), sessions, stopping=threading.Event())
    ends.add([ended])
    ends.store(wake=lambda: None, wake_within=lambda _: None)
    assert stored.done()
    assert state_of(sessions, ending) == "completed"
    with sessions() as session:
        places = {each.lease_id: each.state for each in session.scalars(select(Reservation))}
    held = {each.lease.lease_id: "held" for each in running[1:]}
    assert places == held | {begun.lease.lease_id: "draining"}
