"""Errors of jobs are not sealed, so they quote nothing of an answer that has not the form asked for."""

import json
from uuid import UUID

import pytest
from sqlalchemy.orm import Session, sessionmaker

from cli.stack.servers.valkey import EmbeddedValkey
from jobs.prompts.guides import Guide, GuideKind
from jobs.prompts.store import NewText
from jobs.prompts.tools.forms import AnswerForm, CallForm
from jobs.settings import DatabaseSettings, EngineSettings, Settings
from sealed.sealers import sealing
from searching.stores import Marks, in_database
from stand_in_engine import standing_in
from worker_suite import settings_of_worker
from worker_support import Queue, running_worker

Sessions = sessionmaker[Session]

SAID, CALLED = "laryngoscopy", "book_tracheotomy"
MARKS = Marks([SAID, CALLED])
SCHEMA = {"type": "object", "properties": {"what": {"type": "integer"}}}
ANSWER = json.dumps({"what": SAID})
FORM = AnswerForm(guide=Guide(GuideKind.JSON, json.dumps(SCHEMA)))
CALL = AnswerForm(calls=CallForm((CALLED,), {CALLED: json.dumps(SCHEMA)}))
CALLING = json.dumps({"name": CALLED, "parameters": {"what": SAID}})


@pytest.fixture
def settings(database_settings: DatabaseSettings, valkey: EmbeddedValkey) -> Settings:
    engine = {"url": "http://127.0.0.1:1", "max_batch_size": 4, "max_blocks": 256, "tokens_per_block": 32}
    return settings_of_worker(database_settings, valkey.url, EngineSettings.model_validate(engine))


def failed(queue: Queue, settings: Settings, form: AnswerForm, said: str) -> str:
    """Run a job whose engine says this in that form's place; return the message of its error."""
    written = form.written()
    assert written is not None
    ids = queue.tokenizer.encode_text(said).tolist()
    with standing_in("sglang", says=ids, repeats=False) as stand_in:
        engine = settings.engine.model_copy(update={"url": stand_in.url})
        with running_worker(settings.model_copy(update={"engine": engine}), queue.tokenizer):
            job_id: UUID = queue.submit("Who?", guide=NewText(written), is_whole=form.guide is not None)
            ended = queue.ended(job_id)
    assert (ended.state, (ended.error or {})["code"]) == ("failed", "invalid_output")
    result = queue.result(job_id)
    assert result is not None
    assert SAID in f"{result.output}{result.tool_calls}", "its caller reads what it said"
    return str((ended.error or {})["message"])


@pytest.mark.parametrize(("form", "said"), [(FORM, ANSWER), (CALL, CALLING)])
def test_the_error_of_a_job_quotes_no_answer_that_is_sealed(
    queue: Queue, settings: Settings, sessions: Sessions, sealed: Sessions, form: AnswerForm, said: str
) -> None:
    message = failed(Queue(sealed, queue.tokenizer), sealing(settings), form, said)
    assert "'type'" in message
    assert in_database(sessions, MARKS) == set()


def test_the_search_finds_it_where_answers_are_not_sealed(
    queue: Queue, settings: Settings, sessions: Sessions
) -> None:
    assert SAID in failed(queue, settings, FORM, ANSWER)
    assert "jobs.error" in in_database(sessions, MARKS)
