"""A worker makes requests while their claims commit, and sends none before."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.settings import Settings
from worker.inference.run_stream import RunStream
from worker.inference.sending.claiming import Claiming
from worker_support import Queue, running_worker


@contextmanager
def failing_commits(sessions: sessionmaker[Session], *, number: int) -> Iterator[None]:
    """Let the first commits of claims fail, after all their statements."""
    with transaction(sessions) as session:
        session.execute(text("CREATE SEQUENCE num_commits"))
        session.execute(
            text(
                "CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                f" IF nextval('num_commits') <= {number} THEN RAISE EXCEPTION 'not yet'"
                " USING ERRCODE = 'serialization_failure'; END IF; RETURN NEW; END $$"
            )
        )
        session.execute(
            text(
                "CREATE CONSTRAINT TRIGGER fails AFTER INSERT ON reservations DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION fails()"
            )
        )
    yield
    with transaction(sessions) as session:
        session.execute(text("DROP FUNCTION fails CASCADE"))
        session.execute(text("DROP SEQUENCE num_commits"))


def test_a_request_is_made_while_its_claim_commits_and_sent_afterwards(
    queue: Queue, feeding: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    told, reserved = list[bool](), list[int]()
    tell, start = Claiming.tell, RunStream.start

    def tell_noted(claiming: Claiming, *, is_claimed: bool) -> None:
        told.append(is_claimed)
        tell(claiming, is_claimed=is_claimed)

    def start_noted(stream: RunStream) -> None:
        reserved.append(len(queue.reservations()))  # as others see them
        start(stream)

    monkeypatch.setattr(Claiming, "tell", tell_noted)
    monkeypatch.setattr(RunStream, "start", start_noted)
    with failing_commits(queue.sessions, number=2), running_worker(feeding(), queue.tokenizer):
        job = queue.ended(queue.submit("A question. [[tokens=20]]"))
    assert told == [False, False, True]
    assert reserved == [1]
    assert (job.state, job.completion_tokens, job.attempt, job.num_rescues) == ("completed", 20, 0, 0)
    assert queue.reservations() == []
