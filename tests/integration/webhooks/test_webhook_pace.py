"""Rounds of deliveries wait for each other only if they have work, and cost the database little."""

from threading import Event

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session, sessionmaker

from support import eventually
from webhook_support import WEBHOOKS, Receiver, add_endpoint, dispatch_states, finish, vault
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


def test_queueing_events_has_one_text_however_many_destinations_there_are(
    engine: Engine, sessions: sessionmaker[Session]
) -> None:
    texts: list[str] = []

    def note(_connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if "INSERT INTO webhook_dispatches" in statement:
            texts.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        for number in range(4):
            add_endpoint(sessions, f"https://a.example/{number}", events=["job.completed"])
            if number:  # two destinations, then three, then four
                finish(sessions)
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert texts == texts[:1] * 3
    assert dispatch_states(sessions) == ["pending"] * 9
