"""Ticks have a connection of their own."""

from sqlalchemy import text

from cli.stack.servers.valkey import EmbeddedValkey
from jobs.settings import DatabaseSettings
from local_engine import RunningEngine
from worker_support import Queue, running_worker, settings_for


def test_ticks_have_a_connection_of_their_own(
    queue: Queue, synthetic: RunningEngine, database_settings: DatabaseSettings, valkey: EmbeddedValkey
) -> None:
    settings = settings_for(database_settings, valkey.url, synthetic)
    found = text("SELECT pid FROM pg_stat_activity WHERE application_name = 'longbatch-ticks'")
    pids = []
    with running_worker(settings, queue.tokenizer):
        for words in ("something", "more"):
            assert queue.ended(queue.submit(f"Say {words}. [[tokens=20]]")).state == "completed"
            with queue.sessions() as session:
                pids.append(session.scalars(found).all())
    assert len(pids[0]) == 1
    assert pids[0] == pids[1]
