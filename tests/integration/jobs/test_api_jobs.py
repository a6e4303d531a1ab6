from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
from pydantic import TypeAdapter
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session, sessionmaker

from api.jobs.replies import JobReply, JobWithQueueReply
from api_server import error_of
from jobs import ids
from jobs.ids import uuid7
from jobs.models import IdempotencyKey, Job, PromptText, Tenant
from jobs.states import TERMINAL, JobState
from support import job_in, register_engine, spec, submit_one

OTHER_TENANT = uuid7()


def stored(sessions: sessionmaker[Session], state: JobState) -> str:
    """The id of a job that reached this state through the verbs."""
    with sessions.begin() as session:
        return ids.job_id(job_in(session, state).id)


def stored_for_somebody_else(sessions: sessionmaker[Session]) -> str:
    with sessions.begin() as session:
        session.merge(Tenant(id=OTHER_TENANT, name="somebody else"))
        session.flush()
        return ids.job_id(submit_one(session, tenant_id=OTHER_TENANT).id)


def count(sessions: sessionmaker[Session], table: type[Job] | type[PromptText]) -> int:
    with sessions() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def without_queue(job: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in job.items() if name != "queue"}


def test_a_small_job_is_counted_and_queued_before_the_answer(http: httpx2.Client) -> None:
    sent = {
        "input": "Why is the sky blue?",
        "max_tokens": 7,
        "temperature": 0,
        "stop": "\n",
        "priority": "high",
        "custom_id": "a-1",
        "metadata": {"team": "sky"},
        "completion_window": "1h",
    }
    answer = http.post("/v1/jobs", json=sent)
    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    kept = {*sent} & {*JobReply.__annotations__}
    assert {key: job[key] for key in kept} == {key: sent[key] for key in kept}
    assert (job["state"], job["prompt_tokens"], job["task"]) == ("queued", 16, "generate")
    window = datetime.fromisoformat(job["expires_at"]) - datetime.fromisoformat(job["created_at"])
    assert window == timedelta(hours=1)
    assert job == without_queue(http.get(answer.headers["location"]).json())


def test_the_documented_job_has_the_fields_of_the_real_one(http: httpx2.Client) -> None:
    job = http.post("/v1/jobs", json={"input": "a"}).json()
    assert list(job) == list(JobReply.__annotations__)
    seen = http.get(f"/v1/jobs/{job['id']}").json()
    assert list(seen) == list(JobWithQueueReply.__annotations__)
    TypeAdapter(JobWithQueueReply).validate_python(seen)


def test_a_conversation_is_accepted(http: httpx2.Client) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello \U0001f600"}]
    assert http.post("/v1/jobs", json={"input": turns}).json()["state"] == "queued"


def test_a_long_job_is_accepted_uncounted(http: httpx2.Client) -> None:
    job = http.post("/v1/jobs", json={"input": "a word " * 5000}).json()
    assert (job["state"], job["prompt_tokens"]) == ("preparing", None)


def test_a_key_and_body_give_the_same_job(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = http.post("/v1/jobs", json={"input": "a", "max_tokens": 5}, headers=key)
    again = http.post("/v1/jobs", content=b'{ "max_tokens":5,\n"input":"a", "task":"generate"}', headers=key)
    assert again.status_code == 202
    assert again.json()["id"] == first.json()["id"]
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert count(sessions, Job) == 1


def test_a_key_with_another_body_is_a_conflict(http: httpx2.Client) -> None:
    key = {"Idempotency-Key": "k-1"}
    http.post("/v1/jobs", json={"input": "a"}, headers=key)
    answer = http.post("/v1/jobs", json={"input": "b"}, headers=key)
    assert (answer.status_code, error_of(answer)["code"]) == (409, "idempotency_conflict")
    assert error_of(answer)["param"] == "Idempotency-Key"


def test_a_key_is_forgotten_after_a_day(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = http.post("/v1/jobs", json={"input": "a"}, headers=key).json()["id"]
    with sessions.begin() as session:
        session.execute(update(IdempotencyKey).values(created_at=datetime.now(UTC) - timedelta(hours=25)))
    assert http.post("/v1/jobs", json={"input": "b"}, headers=key).json()["id"] != first


def test_twenty_requests_at_once_with_one_key_make_one_job(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    def submit(_: int) -> httpx2.Response:
        return http.post("/v1/jobs", json={"input": "a"}, headers={"Idempotency-Key": "k-1"})

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(submit, range(20)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    assert count(sessions, Job) == 1


def test_requests_at_once_get_each_their_own_job(http: httpx2.Client) -> None:
    def submit(number: int) -> dict[str, object]:
        fields = {"input": f"text {number % 7}", "custom_id": str(number), "max_tokens": number + 1}
        job: dict[str, object] = http.post("/v1/jobs", json=fields).json()
        return job

    with ThreadPoolExecutor(20) as pool:
        jobs = list(pool.map(submit, range(100)))
    assert [(job["custom_id"], job["max_tokens"]) for job in jobs] == [(str(n), n + 1) for n in range(100)]
    assert len({job["id"] for job in jobs}) == 100
    listed = http.get("/v1/jobs?limit=100").json()["data"]
    assert {job["id"]: job for job in listed} == {job["id"]: job for job in jobs}


def test_an_unchanged_job_is_304(http: httpx2.Client) -> None:
    path = http.post("/v1/jobs", json={"input": "a"}).headers["location"]
    tag = http.get(path).headers["etag"]
    assert tag.startswith('W/"')
    for given in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*"):
        answer = http.get(path, headers={"If-None-Match": given})
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
    http.post(f"{path}/cancel")
    assert http.get(path, headers={"If-None-Match": tag}).status_code == 200


def test_pages_stay_stable_while_jobs_are_added(http: httpx2.Client) -> None:
    made = [http.post("/v1/jobs", json={"input": "a"}).json()["id"] for _ in range(5)]
    seen: list[str] = []
    query: dict[str, str | int] = {"limit": 2}
    while True:
        page = http.get("/v1/jobs", params=query).json()
        ids_ = [job["id"] for job in page["data"]]
        assert (page["object"], page["first_id"], page["last_id"]) == ("list", ids_[0], ids_[-1])
        seen += ids_
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
        http.post("/v1/jobs", json={"input": "b"})
    assert seen == made[::-1]


def test_an_empty_list_has_no_ids(http: httpx2.Client) -> None:
    assert http.get("/v1/jobs").json() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


def test_lists_are_filtered(http: httpx2.Client) -> None:
    one = http.post("/v1/jobs", json={"input": "a", "task": "summarize", "custom_id": "x"}).json()["id"]
    two = http.post("/v1/jobs", json={"input": "a", "custom_id": "y"}).json()["id"]
    http.post(f"/v1/jobs/{two}/cancel")
    for query, expected in {
        "state=queued": [one],
        "state=cancelled": [two],
        "task=summarize": [one],
        "custom_id=y": [two],
        "custom_id=y&state=queued": [],
    }.items():
        assert [job["id"] for job in http.get(f"/v1/jobs?{query}").json()["data"]] == expected


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_every_ended_job_has_a_result(
    http: httpx2.Client, sessions: sessionmaker[Session], state: JobState
) -> None:
    answer = http.get(f"/v1/jobs/{stored(sessions, state)}/result")
    result = answer.json()
    assert answer.status_code == 200
    assert list(result) == [
        "id",
        "state",
        "output",
        "reasoning_content",
        "tool_calls",
        "finish_reason",
        "usage",
        "error",
        "logprobs",
        "engine_outputs",
        "embedding",
    ]
    assert result["state"] == state
    has_output = state in (JobState.COMPLETED, JobState.CANCELLED)
    assert result["output"] == ("some text" if has_output else None)
    assert result["finish_reason"] == ("stop" if state is JobState.COMPLETED else None)
    assert (result["error"] is not None) == (state is JobState.FAILED)
    num_generated = 3 if has_output else 0
    assert result["usage"] == {
        "prompt_tokens": 100,
        "completion_tokens": num_generated,
        "total_tokens": 100 + num_generated,
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize("state", [JobState.PREPARING, JobState.QUEUED, JobState.RUNNING])
def test_an_unfinished_job_has_no_result_and_cannot_be_deleted(
    http: httpx2.Client, sessions: sessionmaker[Session], state: JobState
) -> None:
    job_id = stored(sessions, state)
    for answer in (http.get(f"/v1/jobs/{job_id}/result"), http.delete(f"/v1/jobs/{job_id}")):
        assert (answer.status_code, error_of(answer)["code"]) == (409, "job_not_finished")


def test_cancel_can_be_repeated(http: httpx2.Client) -> None:
    path = http.post("/v1/jobs", json={"input": "a"}).headers["location"]
    first, second = http.post(f"{path}/cancel"), http.post(f"{path}/cancel")
    assert first.json()["state"] == "cancelled"
    assert first.json() == second.json()


def test_cancelling_a_running_job_asks_its_worker(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    job = http.post(f"/v1/jobs/{stored(sessions, JobState.RUNNING)}/cancel").json()
    assert (job["state"], job["cancel_requested"]) == ("running", True)


def test_a_deleted_job_is_gone_with_its_text(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    path = http.post("/v1/jobs", json={"input": "a"}).headers["location"]
    http.post(f"{path}/cancel")
    answer = http.delete(path)
    assert answer.json() == {"id": path.rsplit("/", 1)[1], "object": "job", "deleted": True}
    assert http.get(path).status_code == http.delete(path).status_code == 404
    assert (count(sessions, Job), count(sessions, PromptText)) == (0, 0)


def test_somebody_elses_job_is_absent_byte_for_byte(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    foreign, unknown = stored_for_somebody_else(sessions), ids.job_id(uuid7())
    for method, path in (
        ("GET", "/v1/jobs/{}"),
        ("GET", "/v1/jobs/{}?wait=0.1"),
        ("GET", "/v1/jobs/{}/result"),
        ("POST", "/v1/jobs/{}/cancel"),
        ("DELETE", "/v1/jobs/{}"),
        ("GET", "/v1/jobs?after={}"),
    ):
        hidden, absent = (http.request(method, path.format(each)) for each in (foreign, unknown))
        assert (hidden.status_code, hidden.content) == (absent.status_code, absent.content)
    assert http.get("/v1/jobs").json()["data"] == []
    assert http.post("/v1/jobs/cancel", json={"state": "queued"}).json()["cancelled"] == 0


def test_cancel_by_filter_ends_the_jobs_that_match_all_of_it(http: httpx2.Client) -> None:
    def submit(**fields: object) -> str:
        job: str = http.post("/v1/jobs", json={"input": "a", **fields}).json()["id"]
        return job

    matching = [submit(metadata={"team": "x", "run": str(n)}) for n in range(3)]
    others = [submit(metadata={"team": "y"}), submit(), submit(metadata={"team": "x"}, custom_id="keep")]
    http.post(f"/v1/jobs/{others[-1]}/cancel")
    answer = http.post("/v1/jobs/cancel", json={"metadata": {"team": "x"}, "task": "generate"})
    assert answer.json() == {"object": "cancellation", "cancelled": 3}
    cancelled = [job["id"] for job in http.get("/v1/jobs?state=cancelled").json()["data"]]
    assert sorted(cancelled) == sorted([*matching, others[-1]])


def test_requests_keep_their_id(http: httpx2.Client) -> None:
    given = http.get("/health/live", headers={"X-Request-Id": "mine-1.2"})
    assert given.headers["x-request-id"] == "mine-1.2"
    made = http.get("/health/live", headers={"X-Request-Id": "not\u0009safe!"})
    assert made.headers["x-request-id"].startswith("req_")


def test_a_job_without_expiry_has_none(sessions: sessionmaker[Session], http: httpx2.Client) -> None:
    with sessions.begin() as session:
        job_id = ids.job_id(submit_one(session, spec(window=None)).id)
    assert http.get(f"/v1/jobs/{job_id}").json()["expires_at"] is None


def test_what_engines_take_counts_from_their_next_registration_on(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    told = []
    for takes in ({"top_p"}, {"top_p", "min_p"}, {"top_p"}):
        with sessions.begin() as session:
            register_engine(session, model="llama-3.1-8b-instruct", takes=takes)
        told.append(http.post("/v1/jobs", json={"input": "a", "min_p": 0.1}).status_code)
    assert told == [400, 202, 400]
