"""The Python client against a running stack, synchronous and asynchronous."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

import longbatch
from cli.stack.stack import Stack
from longbatch import AsyncClient, Client, NotCompletedError

TEXTS = {
    "report.txt": "The bridge opened in 1932. It carries eight lanes of traffic across the harbour. " * 40,
    "notes/memo.md": "# Memo\n\nThe notice period is three months. Either party may end the contract. " * 20,
}


class Facts(BaseModel):
    subject: str | None
    year: int | None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("documents")
    for name, text in TEXTS.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(text)
    (made / "broken.pdf").write_bytes(b"%PDF-1.7 nothing")
    return made


@pytest.fixture
def lb(stack: Stack) -> Iterator[Client]:
    with Client(stack.urls.api_url, stack.urls.api_key) as client:
        yield client


def test_every_document_has_its_summary_or_its_error_and_a_repeated_run_does_no_work(
    lb: Client, folder: Path
) -> None:
    found = {doc.path.removeprefix(f"{folder}/"): doc for doc in lb.summarize(folder, length=64)}
    assert found.keys() == {*TEXTS, "broken.pdf"}
    assert found["broken.pdf"].summary is None
    assert found["broken.pdf"].error is not None
    assert found["broken.pdf"].error.code == "document_corrupt"
    for name in TEXTS:
        assert found[name].summary
        assert found[name].error is None
        assert (found[name].usage or {})["completion_tokens"] > 0
    again = {doc.path.removeprefix(f"{folder}/"): doc.id for doc in lb.summarize(str(folder), length=64)}
    assert all(again[name] == found[name].id for name in TEXTS)
    listed = {run.id: run for run in lb.runs.list("summary")}
    assert {found[name].id for name in TEXTS} <= listed.keys()
    assert {listed[str(found[name].id)].state for name in TEXTS} == {"completed"}


def test_questions_have_an_answer_for_each_document_and_question(lb: Client, folder: Path) -> None:
    questions = ["When did it open?", "What is the notice period?"]
    found = list(lb.ask([folder / name for name in TEXTS], questions))
    assert sorted((each.path, each.question) for each in found) == sorted(
        (str(folder / name), question) for name in TEXTS for question in questions
    )
    assert all(each.error is None for each in found)
    assert all(each.quote_in_text for each in found if each.quote)


def test_fields_are_instances_of_the_model_or_have_a_fault(lb: Client, folder: Path) -> None:
    (row,) = lb.extract(folder / "report.txt", Facts)
    assert row.error is None
    assert isinstance(row.value, Facts) or row.fault
    assert {each["field"] for each in row.fields} == {"subject", "year"}


def test_a_job_is_submitted_awaited_and_listed(lb: Client) -> None:
    job = lb.jobs.submit("Say something about queues.", max_tokens=16, custom_id="from-python")
    with pytest.raises(NotCompletedError):
        _ = job.output
    ended = job.wait(timeout=60)
    assert (ended.state, ended.id) == ("completed", job.id)
    assert ended.output
    assert [each.id for each in lb.jobs.list(custom_id="from-python")] == [job.id]
    assert lb.jobs.get(job.id).output == ended.output
    assert job.cancel().state == "completed"


def test_equal_keys_submit_one_job(lb: Client) -> None:
    first, second = (lb.jobs.submit("once", max_tokens=4, idempotency_key="k-1") for _ in range(2))
    assert first.id == second.id


def test_a_refusal_names_its_field(lb: Client) -> None:
    with pytest.raises(longbatch.ApiError) as raised:
        lb.jobs.submit("a", max_tokens=0)
    assert (raised.value.status, raised.value.param) == (400, "max_tokens")


def test_paths_without_documents_are_an_error(lb: Client, tmp_path: Path) -> None:
    with pytest.raises(longbatch.NoDocumentsError):
        next(lb.summarize(tmp_path))


def test_the_asynchronous_client_does_the_same(stack: Stack, folder: Path) -> None:
    async def run() -> tuple[dict[str, str | None], str, list[str]]:
        async with AsyncClient(stack.urls.api_url, stack.urls.api_key) as lb:
            summaries = {doc.path: doc.summary async for doc in lb.summarize(folder, length=64)}
            job = await lb.jobs.submit("Say something else.", max_tokens=16)
            output = (await job.wait(timeout=60)).output
            events = [name async for name, _ in lb.events(f"/v1/jobs/{job.id}/events")]
            return summaries, output, events

    summaries, output, events = asyncio.run(run())
    assert sum(bool(each) for each in summaries.values()) == len(TEXTS)
    assert output
    assert events[-1] == "job"


def test_leaving_the_loop_early_ends_the_work_of_the_client(lb: Client, folder: Path) -> None:
    for _ in lb.summarize([folder / name for name in TEXTS], length=32, concurrency=1):
        break
    assert lb.version()["model"]
