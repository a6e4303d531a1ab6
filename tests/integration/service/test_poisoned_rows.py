"""A drill: one service worker, a poisoned row in each of its loops, and other rows beside them."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from pydantic import SecretStr
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from batch_support import Service, lines
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import doorbell
from jobs.database import transaction
from jobs.models import Job, Summary
from jobs.models.document import DocumentText
from jobs.models.file import FilePart
from jobs.prompts.messages import canonical_text
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import BrokerSettings, DatabaseSettings, Settings
from summary_support import create, ready_document, text_of
from support import eventually, refusing, register_engine, spec, submit_one
from worker.celery_app import make_app
from worker.doorbell import WorkerDoorbell
from worker.service import ServiceWorker

NAMES = ("good", "poison", "better")


@pytest.fixture
def unqueueable(sessions: sessionmaker[Session]) -> Iterator[None]:
    """The poisoned job can be failed, and neither queued nor expired."""
    poisoned = "NEW.custom_id = 'poison' AND NEW.state IN ('queued', 'expired')"
    with refusing(sessions, f"BEFORE UPDATE ON jobs FOR EACH ROW WHEN ({poisoned})"):
        yield


@pytest.mark.usefixtures("unqueueable")
def test_poisoned_rows_fail_with_their_codes_and_all_others_go_on(
    sessions: sessionmaker[Session],
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    tokenizer: Tokenizer,
) -> None:
    batches = Service(sessions)
    batch_ids = {name: batches.create(lines(2)) for name in ("poison", "good")}
    with transaction(sessions) as session:
        register_engine(session)
        for name in NAMES:
            submit_one(session, spec(None, prompt=canonical_text(f"Count {name}."), custom_id=name))
            document = ready_document(session, text_of(50, name=name))
            create(session, document, custom_id=name)
            if name == "poison":
                damaged = update(DocumentText).where(DocumentText.document_id == document.id)
                session.execute(damaged.values(body=b"no frame"))
        # Its third attempt: pauses between the others are another test's.
        session.execute(update(Job).where(Job.custom_id == "poison").values(num_preparations=2))
        input_file = batches.batch(batch_ids["poison"]).input_file_id
        session.execute(update(FilePart).where(FilePart.file_id == input_file).values(content=b"no frame"))
        overdue = submit_one(session, spec(custom_id="overdue", window=timedelta(microseconds=1)))
        stuck = submit_one(session, spec(custom_id="poison", window=timedelta(microseconds=1)))
    settings = Settings(
        database=database_settings,
        broker=BrokerSettings(url=SecretStr(valkey.url), socket_timeout_seconds=1),
    )
    broker = doorbell.connect(valkey.url, socket_timeout=1)
    worker = ServiceWorker(settings, tokenizer, WorkerDoorbell(broker, make_app(settings.broker)))
    worker.start()

    def look() -> dict[str, object]:
        with sessions() as session:
            jobs = session.execute(
                select(Job.custom_id, Job.state, Job.error["code"].astext).where(
                    Job.summary_id.is_(None), Job.batch_id.is_(None), Job.expires_at.is_(None)
                )
            )
            planned = session.execute(select(Summary.custom_id, Summary.state, Summary.error["code"].astext))
            return {
                "jobs": {tuple(row) for row in jobs},
                "summaries": {tuple(row) for row in planned},
                "batches": {name: batches.batch(each).state for name, each in batch_ids.items()},
                "overdue": session.get_one(Job, overdue.id).state,
                "stuck": session.get_one(Job, stuck.id).state,
            }

    expected = {
        "jobs": {
            ("good", "queued", None),
            ("better", "queued", None),
            ("poison", "failed", "prompt_uncountable"),
        },
        "summaries": {
            ("good", "running", None),
            ("better", "running", None),
            ("poison", "failed", "content_unreadable"),
        },
        "batches": {"poison": "failed", "good": "in_progress"},
        "overdue": "expired",
        "stuck": "queued",
    }
    try:
        eventually(lambda: look() == expected, timeout=60, interval=0.2)
    except AssertionError:
        assert look() == expected
    finally:
        worker.stop()
        broker.close()
