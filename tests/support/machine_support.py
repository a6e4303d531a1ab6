"""What the state machines share that run verbs on jobs in any order."""

from datetime import timedelta

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from sqlalchemy import update
from sqlalchemy.orm import Session, sessionmaker

from jobs import lifecycle
from jobs.database import database_now
from jobs.engines.capacity import Capacity
from jobs.models import Job
from jobs.transitions import Lease
from support import prepare_next

SMALL = Capacity(max_batch_size=2, max_blocks=20, tokens_per_block=64, max_input_len=1000, max_seq_len=1280)
LATER = timedelta(minutes=5)
places = st.integers(0, 9)


class JobMachine(RuleBasedStateMachine):
    """Runs verbs in committed transactions and remembers every lease that was ever given."""

    sessions: sessionmaker[Session]

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[Lease] = []

    @rule()
    def prepare(self) -> None:
        with self.sessions.begin() as session:
            prepare_next(session, default_capacity=SMALL)

    @rule()
    def expire(self) -> None:
        with self.sessions.begin() as session:
            lifecycle.expire(session, now=database_now(session) + LATER)

    @rule()
    def time_passes(self) -> None:
        with self.sessions.begin() as session:
            session.execute(update(Job).values(run_after=None))


def run_on(sessions: sessionmaker[Session], machine: type[JobMachine]) -> None:
    """Run the machine on this database."""
    run_state_machine_as_test(
        type("LifeOnThisDatabase", (machine,), {"sessions": sessions}),
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes here
        ),
    )
