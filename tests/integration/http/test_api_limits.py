import json
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

import ending
from api_server import ApiProcess, error_of, serving
from cli.stack.ports import free_port
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import ids, tenants
from jobs.models import Job
from jobs.settings import DatabaseSettings
from jobs.states import FinishReason
from jobs.tenants import keys, quotas
from jobs.tenants.keys import Scope
from support import (
    CAPACITY,
    ERROR,
    NO_CERTIFICATES,
    PATIENCE,
    claim_one,
    output_of,
    prepare_next,
    register_engine,
)

SERVED_MODEL = "llama-3.1-8b-instruct"
# A client of a new tenant with these limits.
Limited = Callable[..., httpx2.Client]


@pytest.fixture
def limited(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Limited]:
    made: list[httpx2.Client] = []

    def make(process: ApiProcess = server, **limits: int) -> httpx2.Client:
        with sessions.begin() as session:
            tenant = tenants.create(session, f"t-{secrets.token_hex(4)}")
            tenants.set_limits(session, tenant.id, limits)
            key = keys.create(session, tenant_id=tenant.id, name="", scopes=list(Scope))
        made.append(process.client(api_key=key.secret))
        return made[-1]

    yield make
    for client in made:
        client.close()


def in_one_minute(ask: Callable[[], list[int]]) -> list[int]:
    """Ask within one minute of the clock: a process without Redis counts by it, and estimates at its ends."""
    minute = -1.0
    while minute != time.time() // 60:
        minute = time.time() // 60
        found = ask()
    return found


def enqueued(http: httpx2.Client) -> tuple[int, int]:
    found = http.get("/v1/usage").json()["enqueued"]
    return found["tokens"], found["jobs"]


def test_enqueued_tokens_are_limited_and_given_back_by_a_cancel(limited: Limited) -> None:
    http = limited(max_enqueued_tokens=1000)
    first = http.post("/v1/jobs", json={"input": "a", "max_tokens": 600})
    assert first.status_code == 202
    held = first.json()["prompt_tokens"] + 600
    assert enqueued(http) == (held, 1)
    refused = http.post("/v1/jobs", json={"input": "a", "max_tokens": 600})
    error = error_of(refused)
    assert (refused.status_code, error["code"], error["type"]) == (429, "token_limit_exceeded", "tokens")
    assert f"hold {held} tokens" in str(error["message"])
    assert "Limit: 1,000 enqueued tokens" in str(error["message"])
    assert "x-should-retry" not in refused.headers
    left = {name: refused.headers[f"x-ratelimit-{name}-tokens"] for name in ("limit", "remaining")}
    assert left == {"limit": "1000", "remaining": str(1000 - held)}
    assert first.headers["x-ratelimit-remaining-tokens"] == str(1000 - held)
    http.post(f"/v1/jobs/{first.json()['id']}/cancel")
    assert enqueued(http) == (0, 0)
    assert http.post("/v1/jobs", json={"input": "a", "max_tokens": 600}).status_code == 202


def test_what_is_larger_than_the_whole_quota_is_not_worth_a_retry(limited: Limited) -> None:
    refused = limited(max_enqueued_tokens=100).post("/v1/jobs", json={"input": "a", "max_tokens": 600})
    assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")


def test_unfinished_jobs_are_limited(limited: Limited) -> None:
    http = limited(max_jobs=2)
    answers = [http.post("/v1/jobs", json={"input": "a"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 429]
    assert error_of(answers[2])["code"] == "job_limit_exceeded"


def test_a_job_that_can_never_fit_counts_as_a_job(limited: Limited, sessions: sessionmaker[Session]) -> None:
    never_fits = {"input": "a", "max_tokens": 131_072}
    none = limited(max_jobs=0, max_enqueued_tokens=0)
    refused = none.post("/v1/jobs", json=never_fits)
    assert (refused.status_code, error_of(refused)["code"]) == (429, "job_limit_exceeded")
    lines = [json.dumps(never_fits | {"webhook_url": f"https://host-{n}.example/"}) for n in range(400)]
    assert none.post("/v1/jobs/bulk", content="\n".join(lines)).status_code == 429
    with sessions() as session:
        assert session.scalars(select(Job.id)).all() == []
    assert limited(max_jobs=1).post("/v1/jobs", json=never_fits).json()["state"] == "failed"


def test_bulk_lines_that_can_never_fit_count_as_requests(limited: Limited) -> None:
    lines = [json.dumps({"input": f"a{n}", "max_tokens": 131_072}) for n in range(900)]
    http = limited(max_requests=100)
    report = http.post("/v1/jobs/bulk", content="\n".join(lines)).json()
    assert (report["accepted"], report["rejected"]) == (300, 600), "the first part, until the rate is reached"
    assert {each["code"] for each in report["errors"]} == {"rate_limit_exceeded"}
    assert http.post("/v1/jobs", json={"input": "a"}).status_code == 429


def test_stored_bytes_are_limited_for_all_that_callers_send_and_freed_by_deletion(
    limited: Limited,
) -> None:
    text = secrets.token_hex(6000)  # not compressible to less than 6000 bytes
    unlimited = limited()
    unlimited.post("/v1/jobs", json={"input": text})
    unlimited.post("/v1/documents", content=b"a", params={"filename": "a.txt"})
    stored = unlimited.get("/v1/usage").json()["stored"]
    assert (stored["bytes"] > 6000, stored["max_bytes"]) == (True, None)
    stored["max_bytes"] = stored["bytes"] + 1000
    http = limited(max_stored_bytes=stored["max_bytes"])
    document = http.post("/v1/documents", content=b"a", params={"filename": "a.txt"}).json()["id"]
    sent = http.get("/v1/usage").json()["stored"]
    job_id = http.post("/v1/jobs", json={"input": text, "max_tokens": 8}).json()["id"]
    assert http.get("/v1/usage").json()["stored"] == stored
    words, of = text[:1500], {"documents": [document]}
    described = {"type": "object", "properties": {"a": {"description": words}}}
    refused = [
        http.post("/v1/answers", json={**of, "questions": [words]}),
        http.post("/v1/extractions", json={**of, "schema": described}),
        http.post("/v1/summaries", json={**of, "template": {"whole": text[:3900]}}),
        http.post("/v1/jobs", json={"input": text[::-1]}),
        http.post("/v1/jobs/bulk", content=json.dumps({"input": text[::-1]})),
        http.post("/v1/files", files={"file": ("a.jsonl", text.encode())}, data={"purpose": "batch"}),
        http.post("/v1/documents", content=text.encode(), params={"filename": "a.txt"}),
    ]
    assert [each.status_code for each in refused] == [429] * 7, [each.text for each in refused]
    for each in refused:
        error = error_of(each)
        assert (error["code"], error["type"]) == ("storage_limit_exceeded", "bytes")
        assert f"{stored['bytes']:,} bytes are stored" in str(error["message"])
        assert f"Limit: {stored['max_bytes']:,} stored bytes" in str(error["message"])
        assert each.headers["x-ratelimit-remaining-bytes"] == "1000"
    assert http.get("/v1/usage").json()["stored"] == stored, "what is refused is not kept"
    http.post(f"/v1/jobs/{job_id}/cancel")
    http.delete(f"/v1/jobs/{job_id}")
    assert http.get("/v1/usage").json()["stored"] == sent
    assert http.post("/v1/documents", content=text.encode(), params={"filename": "a.txt"}).is_success
    too_much = limited(max_stored_bytes=100).post("/v1/jobs", json={"input": text})
    assert (too_much.status_code, too_much.headers["x-should-retry"]) == (429, "false")


def test_a_refused_upload_leaves_nothing_in_a_directory(
    limited: Limited, database_settings: DatabaseSettings, valkey: EmbeddedValkey, tmp_path: Path
) -> None:
    upload = {"file": ("a.jsonl", secrets.token_bytes(6000))}
    with serving(database_settings, valkey.url, LONGBATCH_FILES__DIRECTORY=str(tmp_path)) as process:
        fits = limited(process, max_stored_bytes=10_000).post(
            "/v1/files", files=upload, data={"purpose": "batch"}
        )
        kept = list(tmp_path.rglob("*.zst"))
        refused = limited(process, max_stored_bytes=1000).post(
            "/v1/files", files=upload, data={"purpose": "batch"}
        )
    assert (fits.status_code, refused.status_code, len(kept)) == (200, 429, 1)
    assert list(tmp_path.rglob("*.zst")) == kept


def test_requests_at_once_never_pass_the_quota_together(limited: Limited) -> None:
    http = limited(max_jobs=10)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: http.post("/v1/jobs", json={"input": "a"}), range(40)))
    assert sorted(answer.status_code for answer in answers) == [202] * 10 + [429] * 30
    assert enqueued(http)[1] == 10


def test_a_bulk_request_over_the_quota_says_so_for_its_lines(limited: Limited) -> None:
    refused = limited(max_jobs=5).post("/v1/jobs/bulk", content=b'{"input":"a"}\n' * 6)
    assert (refused.status_code, error_of(refused)["code"]) == (429, "job_limit_exceeded")
    http = limited(max_jobs=400)
    report = http.post("/v1/jobs/bulk", content=b'{"input":"a"}\n' * 450).json()
    assert (report["accepted"], report["rejected"]) == (300, 150)
    assert {error["code"] for error in report["errors"]} == {"job_limit_exceeded"}


def test_a_job_that_never_fits_takes_nothing(limited: Limited) -> None:
    http = limited(max_enqueued_tokens=200_000)
    assert http.post("/v1/jobs", json={"input": "a", "max_tokens": 131_072}).json()["state"] == "failed"
    assert enqueued(http) == (0, 0)


def test_an_uncounted_prompt_takes_no_less_than_it_will_have(
    limited: Limited, sessions: sessionmaker[Session]
) -> None:
    http = limited()
    words = "word " * 6000
    job = http.post("/v1/jobs", json={"input": words, "max_tokens": 10}).json()
    assert job["prompt_tokens"] is None
    bound, _ = enqueued(http)
    assert len(words) <= bound <= len(words) + 1000
    assert prepare_next(sessions) is not None
    exact = http.get(f"/v1/jobs/{job['id']}").json()["prompt_tokens"] + 10
    assert enqueued(http) == (exact, 1)
    http.post("/v1/jobs", json={"input": "word " * 100_000, "max_tokens": 10})
    assert enqueued(http)[0] == exact + CAPACITY.max_input_len + 10, "no engine takes a longer prompt"


def test_requests_are_limited_by_the_minute_and_answers_say_how_many_are_left(limited: Limited) -> None:
    http = limited(max_requests=5)
    answers = [http.get("/v1/jobs") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    left = [answer.headers["x-ratelimit-remaining-requests"] for answer in answers[:5]]
    assert left == ["4", "3", "2", "1", "0"]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "5"
    assert answers[0].headers["x-ratelimit-reset-requests"].endswith("s")
    assert "5 requests a minute" in str(error_of(answers[5])["message"])
    assert 1 <= int(answers[5].headers["retry-after"]) <= 60
    assert answers[5].headers["x-ratelimit-remaining-requests"] == "0"
    assert http.get("/health/live").status_code == 200
    assert limited().get("/v1/jobs").status_code == 200, "another tenant is not touched"


def test_requests_are_limited_although_redis_is_away(
    database_settings: DatabaseSettings, limited: Limited
) -> None:
    process = ApiProcess(database_settings, f"redis://127.0.0.1:{free_port()}/0")

    def codes() -> list[int]:
        http = limited(process, max_requests=5)
        return [http.get("/v1/jobs").status_code for _ in range(6)]

    try:
        assert in_one_minute(codes) == [200] * 5 + [429]
    finally:
        process.stop()


def test_two_processes_share_what_they_count(
    server: ApiProcess,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    limited: Limited,
) -> None:
    other = ApiProcess(database_settings, valkey.url)
    try:
        http = limited(max_requests=6)
        with httpx2.Client(
            base_url=other.url,
            headers=http.headers,
            timeout=PATIENCE,
            trust_env=False,
            verify=NO_CERTIFICATES,
        ) as beside:
            assert other.url != server.url
            codes = [client.get("/v1/jobs").status_code for client in (http, beside) for _ in range(4)]
        assert codes == [200] * 6 + [429] * 2
    finally:
        other.stop()


def test_default_limits_admit_a_batch_and_a_busy_client(http: httpx2.Client) -> None:
    line = b'{"input":"' + b"word " * 1000 + b'","max_tokens":1000}\n'
    assert http.post("/v1/jobs/bulk", content=line * 300).json()["accepted"] == 300
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: http.get("/v1/jobs?limit=1"), range(300)))
    assert {answer.status_code for answer in answers} == {200}


def test_usage_counts_every_end_by_day_model_and_state_and_outlives_the_jobs(
    limited: Limited, sessions: sessionmaker[Session]
) -> None:
    http = limited()
    jobs = [http.post("/v1/jobs", json={"input": "a", "max_tokens": 8}).json() for _ in range(3)]
    with sessions.begin() as session:
        register_engine(session, model=SERVED_MODEL)
        told = replace(output_of("x", 5), cached_tokens=1)
        ending.complete(session, claim_one(session).lease, told, FinishReason.STOP)
        ending.fail(session, claim_one(session).lease, ERROR, output_of("x", 2))
    http.post(f"/v1/jobs/{jobs[2]['id']}/cancel")
    http.post("/v1/jobs", json={"input": "a", "max_tokens": 131_072})
    (day,) = http.get("/v1/usage").json()["data"]
    assert day["num_jobs"] == {"completed": 1, "failed": 2, "cancelled": 1, "expired": 0}
    assert day["prompt_tokens"] == jobs[0]["prompt_tokens"] * 2, "what no engine has begun is not counted"
    assert (day["cached_tokens"], day["completion_tokens"], day["model"]) == (1, 7, SERVED_MODEL)
    assert day["total_tokens"] == day["prompt_tokens"] + 7
    for job in jobs:
        assert http.delete(f"/v1/jobs/{job['id']}").status_code == 200
    assert http.get("/v1/usage").json()["data"] == [day]
    assert http.get("/v1/usage", params={"end": "2020-01-01"}).json()["data"] == []


@pytest.mark.parametrize(
    "query", [{"start": "x"}, {"start": "2026-01-02", "end": "2026-01-01"}, {"start": "2020-01-01"}]
)
def test_usage_of_a_wrong_span_is_refused(http: httpx2.Client, query: dict[str, str]) -> None:
    refused = http.get("/v1/usage", params=query)
    assert (refused.status_code, error_of(refused)["param"]) == (400, "start")


def test_held_is_zero_when_all_have_ended(limited: Limited, sessions: sessionmaker[Session]) -> None:
    http = limited()
    report = http.post("/v1/jobs/bulk", content=b'{"input":"a"}\n' * 20).json()
    assert enqueued(http)[1] == 20
    assert http.post("/v1/jobs/cancel", json={"state": "queued"}).json()["cancelled"] == 20
    with sessions() as session:
        job = session.get_one(Job, ids.parse_job_id(report["ids"][0]))
        assert quotas.current_usage(session, job.tenant_id) == quotas.QuotaUsage()
