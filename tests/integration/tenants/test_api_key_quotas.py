"""What one key may have in the queue: over HTTP, with whatever it submits, and until its limit ends."""

import json
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from uuid import UUID

import httpx2
import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session, sessionmaker

from api.runtime.api_keys import caller_of_person
from api_server import ApiProcess, error_of, serving
from batch_support import Service, lines, validate_next
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import tenants
from jobs.models import DEFAULT_TENANT, ApiKey, Batch, Job, Summary
from jobs.settings import DatabaseSettings
from jobs.tenants import key_quotas, keys
from jobs.tenants.key_quotas import KeyQuota
from jobs.tenants.keys import Scope
from jobs.tenants.persons import Person
from jobs.tenants.quotas import QuotaUsage, TenantLimits
from openai_support import chat_line
from summary_support import SMALL, create, plan_all, plan_next, ready_document, text_of
from support import MODEL, eventually, register_engine

SERVED_MODEL = "llama-3.1-8b-instruct"


@dataclass
class Team:
    """A tenant, whose programs have a key each.

    Attributes:
        key_ids: in the order in which the keys were made.
    """

    sessions: sessionmaker[Session]
    server: ApiProcess
    opened: ExitStack
    name: str = field(default_factory=lambda: f"t-{secrets.token_hex(4)}")
    key_ids: list[UUID] = field(default_factory=list)

    def key(self, *processes: ApiProcess, **limits: int | None) -> list[httpx2.Client]:
        """A client of each process with a new key that has these limits."""
        with self.sessions.begin() as session:
            owner = tenants.find(session, self.name).id
            made = keys.create(session, tenant_id=owner, name="", scopes=list(Scope), limits=limits)
            self.key_ids.append(made.row.id)
        each_of = processes or (self.server,)
        return [self.opened.enter_context(each.client(api_key=made.secret)) for each in each_of]

    def client(self, **limits: int | None) -> httpx2.Client:
        (client,) = self.key(**limits)
        return client


@pytest.fixture
def team(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[Team]:
    with ExitStack() as opened:
        made = Team(sessions, server, opened)
        with sessions.begin() as session:
            tenants.create(session, made.name)
        yield made


@pytest.fixture(scope="module")
def beside(database_settings: DatabaseSettings, valkey: EmbeddedValkey) -> Iterator[ApiProcess]:
    """Another API process on the same servers."""
    with serving(database_settings, valkey.url) as process:
        yield process


def post(http: httpx2.Client, **fields: object) -> httpx2.Response:
    return http.post("/v1/jobs", json={"input": "a", "max_tokens": 100} | fields)


def shown(http: httpx2.Client, team: Team, place: int = 0) -> dict[str, object]:
    """What an operator sees of the team's key."""
    with team.sessions() as session:
        name = keys.public_id(session.get_one(ApiKey, team.key_ids[place]))
    found: dict[str, object] = http.get(f"/v1/keys/{name}").json()
    return found


def test_two_processes_hold_a_key_to_its_jobs_and_its_tenants_other_keys_go_on(
    team: Team, server: ApiProcess, beside: ApiProcess, http: httpx2.Client
) -> None:
    both = team.key(server, beside, max_jobs=10)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda place: post(both[place % 2]), range(40)))
    assert sorted(answer.status_code for answer in answers) == [202] * 10 + [429] * 30
    refused = next(answer for answer in answers if answer.status_code == 429)
    error = error_of(refused)
    assert (error["code"], error["type"]) == ("job_limit_exceeded", "jobs")
    assert (error["limit"], error["limit_of"]) == (10, "key")
    assert "Job limit of this API key reached: 10 jobs are unfinished" in str(error["message"])
    assert refused.headers["x-ratelimit-limit-jobs"] == "10"
    assert "x-should-retry" not in refused.headers
    tokens = sum(each.json()["prompt_tokens"] + 100 for each in answers if each.status_code == 202)
    assert shown(http, team)["enqueued"] == {"tokens": tokens, "jobs": 10}
    assert post(team.client()).status_code == 202


def test_tokens_of_a_key_are_limited_shown_and_given_back(team: Team, http: httpx2.Client) -> None:
    client = team.client(max_enqueued_tokens=1000)
    first = post(client, max_tokens=600)
    held = first.json()["prompt_tokens"] + 600
    assert first.headers["x-ratelimit-limit-tokens"] == "1000", "of the limit that leaves less"
    assert first.headers["x-ratelimit-remaining-tokens"] == str(1000 - held)
    assert shown(http, team)["enqueued"] == {"tokens": held, "jobs": 1}
    error = error_of(refused := post(client, max_tokens=600))
    assert (refused.status_code, error["code"], error["limit_of"]) == (429, "token_limit_exceeded", "key")
    client.post(f"/v1/jobs/{first.json()['id']}/cancel")
    assert shown(http, team)["enqueued"] == {"tokens": 0, "jobs": 0}
    assert post(client, max_tokens=600).status_code == 202
    never = post(client, max_tokens=1001)
    assert (never.status_code, never.headers["x-should-retry"]) == (429, "false")
    assert (error_of(never)["limit"], error_of(never)["limit_of"]) == (1000, "key")


def test_a_tenants_own_limit_says_so(team: Team, http: httpx2.Client) -> None:
    http.patch(f"/v1/tenants/{team.name}", json={"limits": {"max_jobs": 1}})
    client = team.client(max_jobs=2)
    assert post(client).status_code == 202
    error = error_of(post(client))
    assert (error["code"], error["limit"], error["limit_of"]) == ("job_limit_exceeded", 1, "tenant")
    assert "of this API key" not in str(error["message"])


def test_a_change_of_the_limits_holds_for_what_is_there_already(team: Team, http: httpx2.Client) -> None:
    client = team.client()
    assert [post(client).status_code for _ in range(3)] == [202] * 3
    path = f"/v1/keys/{shown(http, team)['id']}"
    http.patch(path, json={"limits": {"max_jobs": 3}})
    eventually(lambda: post(client).status_code == 429)
    http.patch(path, json={"limits": {"max_jobs": None}})
    eventually(lambda: post(client).status_code == 202)


CALLS: dict[str, Callable[[httpx2.Client], httpx2.Response]] = {
    "bulk": lambda http: http.post("/v1/jobs/bulk", content=b'{"input":"a"}\n' * 2),
    "idempotent": lambda http: http.post(
        "/v1/jobs", json={"input": "a"}, headers={"Idempotency-Key": secrets.token_hex(4)}
    ),
    "chat": lambda http: http.post(
        "/v1/chat/completions",
        json={"model": SERVED_MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 8},
    ),
    "responses": lambda http: http.post(
        "/v1/responses", json={"model": SERVED_MODEL, "input": "a", "background": True}
    ),
    "embeddings": lambda http: http.post("/v1/embeddings", json={"model": SERVED_MODEL, "input": "a"}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_whatever_a_key_submits_counts_towards_it(
    team: Team, http: httpx2.Client, call: Callable[[httpx2.Client], httpx2.Response]
) -> None:
    client = team.client(max_jobs=0)
    refused = call(client)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (429, "job_limit_exceeded"), refused.text
    assert (error["limit"], error["limit_of"]) == (0, "key")
    assert shown(http, team)["enqueued"] == {"tokens": 0, "jobs": 0}


def test_a_bulk_request_stores_what_the_key_has_room_for(team: Team, http: httpx2.Client) -> None:
    client = team.client(max_jobs=400)
    report = client.post("/v1/jobs/bulk", content=b'{"input":"a"}\n' * 450).json()
    assert (report["accepted"], report["rejected"]) == (300, 150)
    assert {each["code"] for each in report["errors"]} == {"job_limit_exceeded"}
    assert shown(http, team)["enqueued"]["jobs"] == 300  # type: ignore[index]


def test_batches_and_trees_name_the_key_that_asked_for_them(team: Team) -> None:
    client, other = team.client(max_jobs=5), team.client()
    content = json.dumps(chat_line("a", model=SERVED_MODEL)).encode()
    file = client.post("/v1/files", files={"file": ("a.jsonl", content)}, data={"purpose": "batch"}).json()
    asked = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert client.post("/v1/batches", json=asked).status_code == 200
    document = client.post("/v1/documents", content=b"a", params={"filename": "a.txt"}).json()["id"]
    of = {"documents": [document]}
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    for path, fields in (
        ("summaries", {}),
        ("answers", {"questions": ["a?"]}),
        ("extractions", {"schema": schema}),
    ):
        assert other.post(f"/v1/{path}", json=of | fields).status_code == 202, path
    with team.sessions() as session:
        assert session.scalars(select(Batch.api_key_id)).all() == team.key_ids[:1]
        assert session.scalars(select(Summary.api_key_id)).all() == team.key_ids[1:] * 3


def test_the_jobs_of_a_revoked_key_go_on_and_its_limit_ends(team: Team, http: httpx2.Client) -> None:
    client = team.client(max_jobs=1)
    job = post(client).json()
    revoked = http.post(f"/v1/keys/{shown(http, team)['id']}/revoke").json()
    assert (revoked["state"], revoked["enqueued"]["jobs"]) == ("revoked", 1)
    assert team.client().get(f"/v1/jobs/{job['id']}").json()["state"] == job["state"]
    with team.sessions() as session:
        assert key_quotas.read(session, team.key_ids[0]) is None


def test_a_person_submits_for_no_key() -> None:
    person = Person("https://id.example", "1", "Ada", frozenset({"submit"}))
    caller = caller_of_person(person, DEFAULT_TENANT, TenantLimits(1, 1, 1))
    assert (caller.api_key_id, caller.quota) == (None, None)


def new_key(session: Session, **limits: int) -> KeyQuota:
    made = keys.create(session, tenant_id=DEFAULT_TENANT, name="", scopes=[Scope.SUBMIT], limits=limits)
    found = key_quotas.quota_of(made.row)
    assert found is not None
    return found


def held(sessions: sessionmaker[Session], of: KeyQuota) -> QuotaUsage:
    with sessions() as session:
        return key_quotas.current_usage(session, of)


@pytest.mark.parametrize("limits", [{"max_jobs": 3}, {"max_enqueued_tokens": 60}])
def test_lines_of_a_batch_become_jobs_as_its_key_has_room(
    sessions: sessionmaker[Session], limits: dict[str, int]
) -> None:
    service = Service(sessions)
    batch_id, beside = service.create(lines(10)), service.create(lines(10))
    with sessions.begin() as session:
        of_key = new_key(session, **limits)
        session.execute(update(Batch).where(Batch.id == batch_id).values(api_key_id=of_key.key_id))
    while validate_next(service.sessions, service.tools):
        pass
    service.settle()
    assert len(service.jobs(beside)) == 10, "what another key, or none, submits goes on"
    assert 0 < len(service.jobs(batch_id)) < 10
    for _ in range(10):
        assert held(sessions, of_key).is_within(of_key.limits)
        service.complete()
        service.settle()
    assert service.outcome(batch_id) == (sorted(f"line-{number}" for number in range(10)), [])
    assert held(sessions, of_key) == QuotaUsage()


def test_a_line_larger_than_the_quota_of_its_key_fails_alone(sessions: sessionmaker[Session]) -> None:
    service = Service(sessions)
    batch_id = service.create([*lines(2), chat_line("huge", model=MODEL, max_tokens=1000)])
    with sessions.begin() as session:
        of_key = new_key(session, max_enqueued_tokens=300)
        session.execute(update(Batch).values(api_key_id=of_key.key_id))
    assert validate_next(service.sessions, service.tools)
    service.settle()
    service.complete()
    service.settle()
    assert service.outcome(batch_id) == (["line-0", "line-1"], ["huge"])
    (line,) = service.read(service.batch(batch_id).error_file_id)
    assert "Enqueued token limit of this API key reached" in json.dumps(line)


def test_a_line_of_more_jobs_than_its_key_may_ever_have_fails_alone(sessions: sessionmaker[Session]) -> None:
    service = Service(sessions)
    batch_id = service.create(
        [*lines(1), chat_line("many", model=MODEL, n=4), chat_line("fits", model=MODEL, n=3)]
    )
    with sessions.begin() as session:
        of_key = new_key(session, max_jobs=3)
        session.execute(update(Batch).values(api_key_id=of_key.key_id))
    assert validate_next(service.sessions, service.tools)
    for _ in range(3):
        service.settle()
        service.complete()
    assert service.outcome(batch_id) == (["fits", "line-0"], ["many"])
    (line,) = service.read(service.batch(batch_id).error_file_id)
    assert "Job limit of this API key reached" in json.dumps(line)


def test_a_batch_goes_on_without_limit_once_its_key_is_revoked(sessions: sessionmaker[Session]) -> None:
    service = Service(sessions)
    batch_id = service.create(lines(10))
    with sessions.begin() as session:
        of_key = new_key(session, max_jobs=1)
        session.execute(update(Batch).values(api_key_id=of_key.key_id))
    assert validate_next(service.sessions, service.tools)
    service.settle()
    assert len(service.jobs(batch_id)) == 1
    with sessions.begin() as session:
        keys.revoke(session, session.get_one(ApiKey, of_key.key_id))
    service.settle()
    assert len(service.jobs(batch_id)) == 10
    assert held(sessions, of_key).jobs == 10, "they still are that key's"


def states(session: Session) -> list[str]:
    return list(session.scalars(select(Summary.state).order_by(Summary.id)))


def test_a_keys_full_quota_keeps_its_own_summaries_waiting_in_line_and_no_others(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    (first,) = create(session, ready_document(session, text_of(1200)))
    plan_all(session)
    num_jobs = len(session.scalars(select(Job.id)).all())
    of_key = new_key(session, max_jobs=num_jobs + 1)
    session.execute(update(Job).values(api_key_id=of_key.key_id))
    for name in ("a", "b", "c"):
        create(session, ready_document(session, text_of(1200, name=name)))
    (small,) = create(session, ready_document(session, text_of(20, name="d")))
    session.execute(update(Summary).where(Summary.id != first.id).values(api_key_id=of_key.key_id))
    create(session, ready_document(session, text_of(1200, name="e")))
    plan_all(session)
    assert states(session) == ["running", *["preparing"] * 4, "running"], "the small one takes no one's room"
    waiting = session.scalars(select(Summary).where(Summary.state == "preparing").order_by(Summary.id)).all()
    pauses = [each.plan_after for each in waiting]
    assert None not in pauses
    assert pauses == sorted(pauses, key=lambda each: each or small.created_at)
    session.execute(
        update(Job).where(Job.summary_id == first.id).values(api_key_id=None)
    )  # there is room now
    session.execute(update(Summary).where(Summary.id == waiting[0].id).values(plan_after=None))
    assert plan_next(session) is not None
    assert states(session)[1:4] == ["running", "preparing", "preparing"]
    mine = select(Job.api_key_id).where(Job.summary_id == waiting[0].id).distinct()
    assert session.scalars(mine).all() == [of_key.key_id], "its jobs are the key's that asked for it"
    session.refresh(waiting[1])
    assert waiting[1].plan_after is None, "the next was woken"


def test_a_tree_with_more_jobs_than_its_key_may_ever_have_fails(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    (summary,) = create(session, ready_document(session, text_of(2000)))
    summary.api_key_id = new_key(session, max_jobs=3).key_id
    session.flush()
    plan_next(session)
    session.refresh(summary)
    assert (summary.state, (summary.error or {}).get("code")) == ("failed", "job_limit_exceeded")
