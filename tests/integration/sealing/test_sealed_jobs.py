"""Jobs whose content is sealed: their rows do not show it, and those who have the key read all of it."""

from uuid import UUID

import pytest
from sqlalchemy.orm import Session, sessionmaker

import ending
from jobs import checkpoints, lifecycle, queries
from jobs.checkpoints import Output
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT, Job
from jobs.prompts import store
from jobs.prompts.store import CountedPrompt, NewText
from jobs.prompts.tokenizer import pack_ids
from jobs.prompts.tools.calls import MadeCall, read_calls
from jobs.sharing import Sharing
from jobs.states import FinishReason, StopReason
from jobs.submission.job_specs import JobSpec
from jobs.tenants import stored_bytes
from jobs.transitions import Lease
from sealed.sealers import OPENS, SEALS, Connect
from searching.stores import Marks, in_database
from support import MODEL, WordCounter, claim_one, prepare_next, register_engine, spec, submit_one
from webhook_support import Receiver, add_endpoint, deliver_all, dispatch_states

Sessions = sessionmaker[Session]

ASKED, SAID, THOUGHT, CALLED = "appendicitis", "laparotomy", "peritonitis", "book_theatre"
IDS, SAID_IDS = tuple(range(70_001, 70_011)), tuple(range(80_001, 80_011))
MARKS = Marks([ASKED, SAID, THOUGHT, CALLED], [IDS, SAID_IDS])
OUTPUT = Output(
    text=f"Do a {SAID}.",
    ids=SAID_IDS,
    num_tokens=len(SAID_IDS),
    reasoning=f"It may be {THOUGHT}.",
    reasoning_tokens=3,
    calls=(MadeCall(0, CALLED, f'{{"why": "{SAID}"}}'),),
    log_probs=SAID.encode(),
    embedding=b"\0\0\0\0" + SAID.encode(),
)
WHERE = {
    "texts.body",
    "texts.token_ids",
    *(f"results.{each}" for each in ("output", "output_ids", "reasoning", "tool_calls")),
    *(f"results.{each}" for each in ("log_probs", "embedding")),
}


def asked(*, sharing: Sharing | None = None) -> JobSpec:
    counted = CountedPrompt(pack_ids(IDS), len(IDS), "test")
    text = NewText(f"Is it {ASKED}?", counted)
    return JobSpec(text=text, task="generate", model=MODEL, max_tokens=64, sharing=sharing)


def claimed(sessions: Sessions) -> Lease:
    with transaction(sessions) as session:
        register_engine(session)
        submit_one(session, asked())
        return claim_one(session).lease


def completed(sessions: Sessions) -> UUID:
    """A job that ran, was saved on the way, and is complete."""
    lease = claimed(sessions)
    with transaction(sessions) as session:
        assert ending.checkpoint(session, lease, OUTPUT)
    with transaction(sessions) as session:
        stored = lifecycle.finish(session, [ending.completed(lease, OUTPUT, engine_is_done=False)])
        assert stored.keys() == {lease.lease_id}
    return lease.job_id


def read(sessions: Sessions, job_id: UUID) -> tuple[object, ...]:
    """All of a job's content."""
    with sessions() as session:
        job = session.get_one(Job, job_id)
        assert job.text_id is not None
        prompt = store.load(session, job.text_id)
        together = store.counts_of(store.read(session, [prompt.id]).values(), WordCounter())
        result = queries.get_result(session, job_id)
        assert result is not None
        assert all(each.packed_ids == prompt.token_ids for each in together.values())
        return (
            prompt.canonical,
            prompt.token_ids,
            result.output,
            result.output_ids,
            result.reasoning,
            read_calls(result.tool_calls),
            result.log_probs,
            result.embedding,
        )


ALL = (
    f"Is it {ASKED}?",
    pack_ids(IDS),
    OUTPUT.text,
    pack_ids(OUTPUT.ids),
    OUTPUT.reasoning,
    OUTPUT.calls,
    OUTPUT.log_probs,
    OUTPUT.embedding,
)


def test_no_row_shows_what_was_asked_and_said(sessions: Sessions, sealed: Sessions) -> None:
    job_id = completed(sealed)
    assert in_database(sessions, MARKS) == set()
    assert read(sealed, job_id) == ALL


def test_the_search_finds_it_where_it_is_not_sealed(sessions: Sessions) -> None:
    assert read(sessions, completed(sessions)) == ALL
    assert in_database(sessions, MARKS) == WHERE


def test_what_runs_is_saved_sealed_and_goes_on(sessions: Sessions, sealed: Sessions) -> None:
    lease = claimed(sealed)
    with transaction(sealed) as session:
        assert ending.checkpoint(session, lease, OUTPUT)
    assert in_database(sessions, MARKS) == set()
    with transaction(sealed) as session:
        saved = checkpoints.load(session, lease.job_id)
        assert saved is not None
        assert (saved.text, saved.ids, saved.calls) == (OUTPUT.text, OUTPUT.ids, OUTPUT.calls)
        assert ending.finish_stopped(session, lease, StopReason.CANCEL, None)
    assert in_database(sessions, MARKS) == set()
    with sealed() as session:  # SQL made the result of the checkpoint
        result = queries.get_result(session, lease.job_id)
        assert result is not None
        assert (result.output, result.reasoning) == (OUTPUT.text, OUTPUT.reasoning)


def test_sealing_can_begin_and_end_at_any_time(
    sessions: Sessions, sealed: Sessions, connect: Connect
) -> None:
    off = connect(OPENS)
    before = completed(sessions)
    with transaction(sealed) as session:
        submit_one(session, asked())  # an equal prompt is there: its row stays plain
        lease = claim_one(session).lease
        assert ending.complete(session, lease, OUTPUT, FinishReason.STOP)
    for each in (sealed, off):
        assert read(each, before) == ALL
        assert read(each, lease.job_id) == ALL
    assert in_database(sessions, MARKS) == WHERE


def test_a_prompt_that_is_counted_later_is_sealed_with_its_ids(sessions: Sessions, sealed: Sessions) -> None:
    with transaction(sealed) as session:
        job_id = submit_one(session, spec(None, prompt=f"Is it {ASKED}?")).id
    prepared = prepare_next(sealed)
    assert prepared is not None
    assert (prepared.id, prepared.prompt_tokens) == (job_id, 3)
    assert in_database(sessions, MARKS) == set()


@pytest.mark.parametrize("is_sealed", [True, False])
def test_what_a_submission_counts_is_what_its_tenant_stores(
    sessions: Sessions, connect: Connect, *, is_sealed: bool
) -> None:
    made = connect(SEALS) if is_sealed else sessions
    with transaction(made) as session:
        stored_bytes.add_up(session, limit=10_000)
        before = stored_bytes.read(session, DEFAULT_TENANT)
        found = store.store(session, [asked().text, NewText("not counted")], tenant_id=DEFAULT_TENANT)
    with transaction(made) as session:
        assert stored_bytes.read(session, DEFAULT_TENANT) - before == found.num_new_bytes


def test_a_webhook_carries_what_its_row_does_not_show(
    sessions: Sessions, sealed: Sessions, receiver: Receiver
) -> None:
    add_endpoint(sealed, receiver.url(), events=("*",), includes_output=True)
    completed(sealed)
    assert in_database(sessions, MARKS) == set()
    assert deliver_all(sealed) == 1
    (seen,) = receiver.seen
    assert seen.event["data"]["output"] == OUTPUT.text
    assert dispatch_states(sealed) == ["delivered"]


def test_a_webhook_measures_the_output_and_not_how_it_is_stored(sealed: Sessions, receiver: Receiver) -> None:
    add_endpoint(sealed, receiver.url(), events=("*",), includes_output=True)
    for size in (16 * 1024, 16 * 1024 + 1):
        lease = claimed(sealed)
        with transaction(sealed) as session:
            output = Output(text="x" * size, ids=(5, 6, 7), num_tokens=3)
            assert ending.complete(session, lease, output, FinishReason.STOP)
    deliver_all(sealed)
    assert [len(each.event["data"]["output"] or "") for each in receiver.seen] == [16 * 1024, 0]


def test_an_equal_request_gets_the_sealed_answer(sessions: Sessions, sealed: Sessions) -> None:
    with transaction(sealed) as session:
        register_engine(session)
        first, second = (submit_one(session, asked(sharing=Sharing())).id for _ in range(2))
        lease = claim_one(session).lease
        assert lease.job_id == first
        assert ending.complete(session, lease, OUTPUT, FinishReason.STOP)
    assert read(sealed, second) == ALL
    assert in_database(sessions, MARKS) == set()
