"""Rounds of deliveries wait for each other only if they have work, and cost the database little."""

from collections.abc import Iterator
from threading import Event

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.engine.interfaces import CacheStats
from sqlalchemy.orm import Session, sessionmaker

from jobs import database
from jobs.database import transaction
from jobs.settings import DatabaseSettings
from jobs.webhooks import claims, destinations, fairness
from support import eventually
from webhook_support import WEBHOOKS, Receiver, add_endpoint, claim, dispatch_states, finish, vault
from worker.webhooks import delivery
from worker.webhooks.delivery import Deliverer


def test_only_a_round_with_work_delays_the_next_one(
    sessions: sessionmaker[Session], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_PACE_SECONDS", 3600.0)
    paused: list[float] = []
    woken = Event()
    deliverer = Deliverer(sessions, WEBHOOKS, vault(), wake=woken.set, pause=paused.append)
    deliverer.start()

    def delays() -> bool:
        """Do a round; whether it had to wait for its turn."""
        paused.clear()
        deliverer.run_once()
        return paused != [0.0]

    assert [delays(), delays()] == [False, False]
    finish(sessions, webhook_url=receiver.url())
    assert not delays(), "what comes after rounds without work is claimed at once"
    eventually(lambda: not deliverer._senders.ended.empty())
    assert delays(), "ends of exchanges are recorded together"
    assert dispatch_states(sessions) == ["delivered"]
    assert delays(), "after a round that recorded one"
    deliverer.stop(within=5)


@pytest.fixture
def single(
    database_settings: DatabaseSettings,
    sessions: sessionmaker[Session],  # noqa: ARG001  # the database is empty
) -> Iterator[sessionmaker[Session]]:
    """Sessions on a single connection."""
    made = database.make_engine(database_settings, pool_size=1)
    yield database.make_sessions(made)
    made.dispose()


def test_the_statements_of_a_claim_are_prepared_once_on_a_connection(
    sessions: sessionmaker[Session], single: sessionmaker[Session]
) -> None:
    add_endpoint(sessions, "https://a.example/", events=["job.completed"])
    prepared = text("SELECT statement FROM pg_prepared_statements ORDER BY name")
    found = []
    for _ in range(2):
        finish(sessions)
        with transaction(single) as session:
            assert len(claim(session, limit=4)) == 1
            found.append(session.scalars(prepared).all())
    assert found[0] == found[1]
    for statement in (
        claims._LOCK_FIRST,
        claims._TAKE,
        destinations._UNNOTICED,
        destinations._SCHEDULE,
        destinations._UPDATE_DUE_TIMES,
        fairness.LOOK,
    ):
        begin = statement.text.strip().partition("\n")[0].partition(":")[0]
        assert any(each.strip().startswith(begin) for each in found[0]), begin


def test_queueing_events_is_written_as_sql_once(engine: Engine, sessions: sessionmaker[Session]) -> None:
    hits: list[CacheStats] = []

    def note(
        _connection: Connection,
        _cursor: object,
        statement: str,
        _given: object,
        context: DefaultExecutionContext,
        _many: bool,  # noqa: FBT001  # as SQLAlchemy calls it
    ) -> None:
        if "INSERT INTO webhook_dispatches" in statement:
            hits.append(context.cache_hit)

    event.listen(engine, "before_cursor_execute", note)
    try:
        for number in range(4):
            add_endpoint(sessions, f"https://a.example/{number}", events=["job.completed"])
            if number:  # two destinations, then three, then four
                finish(sessions)
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert hits[1:] == [CacheStats.CACHE_HIT] * 2
    assert dispatch_states(sessions) == ["pending"] * 9
