"""A worker whose engine does what chance says."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.orm import Session, sessionmaker

from claiming.courses import CAPACITY, Course
from jobs.database import transaction
from jobs.settings import Settings
from support import register_engine


@pytest.fixture
def course(sessions: sessionmaker[Session], feeding: Callable[..., Settings]) -> "Course":
    with transaction(sessions) as session:
        register_engine(session, capacity=CAPACITY)
    return Course(feeding(), sessions, ThreadPoolExecutor(1))
