"""A desk, and jobs in all slots of its engine."""

import threading
from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session, sessionmaker

from claiming import claims
from claiming.desks import SLOTS
from jobs.database import transaction
from jobs.settings import Settings
from jobs.starting import Claim
from support import ENGINE, POLICY, register_engine, submit_one
from worker.inference.desk import Desk


@pytest.fixture
def desk(sessions: sessionmaker[Session], feeding: Callable[..., Settings]) -> Desk:
    return Desk(feeding(), sessions, stopping=threading.Event())


@pytest.fixture
def running(sessions: sessionmaker[Session]) -> list[Claim]:
    """Jobs in all slots, and two more in the queue."""
    with transaction(sessions) as session:
        register_engine(session)
        for _ in range(SLOTS + 2):
            submit_one(session)
        found = list(claims.claim_all(session, ENGINE, POLICY).claims)
    assert len(found) == SLOTS
    return found
