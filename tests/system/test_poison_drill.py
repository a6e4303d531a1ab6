"""A drill on the running stack: one tenant's rows are poison, and two others' work goes on beside them.

With `-s` it prints how long the others' rounds take without poison and beside it.
"""

import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest
from pydantic import SecretStr
from standardwebhooks import Webhook

from cli.stack.options import StackOptions
from cli.stack.ready import SERVICE_WORKER
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.stack import Stack
from jobs import database, tenants
from jobs.models.turn import COUNTING
from jobs.prompts.tokenizer_files import tokenizer_directory
from jobs.settings import DatabaseSettings
from jobs.tenants import keys
from jobs.tenants.keys import Scope
from openai_support import CHAT, chat_line, jsonl
from support import eventually
from system_support import TIME_SCALE, Client, running_stack, text_of
from webhook_support import Receiver, receiving

pytestmark = pytest.mark.timeout(360)

_LONG_CHARS: Final = 100_000  # not counted before the answer
_USUAL_ROUNDS: Final = 3
_OLD_BOUND: Final = 32_767
_PATIENCE: Final = 240  # seconds: a busy machine takes half a minute to start each service worker anew

# Every planning of the tenant loses its connection as it writes its tree down, as one does that takes too
# long; one event can be sent, and never recorded.
_PLANT: Final = """
    CREATE FUNCTION hang_up() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
        PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NEW; END $$;
    CREATE TRIGGER hang_up BEFORE INSERT ON summary_nodes FOR EACH ROW
        WHEN (NEW.tenant_id = '{tenant_id}') EXECUTE FUNCTION hang_up();
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'poison' USING ERRCODE = 'check_violation'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON webhook_deliveries FOR EACH ROW
        WHEN (NEW.event_id = '{unrecordable}') EXECUTE FUNCTION refuse();
"""
_HOLD_TEXT: Final = """
    SELECT 1 FROM texts JOIN jobs ON jobs.text_id = texts.id WHERE jobs.id = %s FOR NO KEY UPDATE OF texts
"""
_IS_WAITING: Final = "SELECT 1 FROM jobs WHERE id = %s AND state = 'preparing'"
_IS_BLOCKED: Final = "SELECT pid FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
_IS_THERE: Final = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """One whose lost service workers are noticed, and started again, within seconds."""
    options = StackOptions(
        directory=tmp_path / "stack",
        engine=EngineOptions(tokenizer_dir=tokenizer_directory(None), time_scale=TIME_SCALE),
        environment={
            **os.environ,
            "LONGBATCH_MAINTENANCE__LEASE_SECONDS": "3",
            "LONGBATCH_DOCUMENTS__LEASE_SECONDS": "3",
            "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS": '["127.0.0.1"]',
            "LONGBATCH_WEBHOOKS__DEADLINE_SECONDS": "2",
        },
    )
    with running_stack(options) as made:
        yield made


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def rows(stack: Stack, query: str, *values: object) -> list[tuple[Any, ...]]:
    """What the statement finds, or changes and returns."""
    with psycopg.connect(stack.urls.database_url or "", autocommit=True) as connection:
        found = connection.execute(query, values)
        return list(found) if found.description else []


def found_at(client: Client, path: str) -> dict[str, Any]:
    """Read an object of the API."""
    answer = client.http.get(path)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def made_at(client: Client, path: str, **request: Any) -> dict[str, Any]:  # noqa: ANN401  # as httpx takes it
    """Make an object through the API."""
    answer = client.http.post(path, **request)
    assert answer.status_code in {200, 201, 202}, answer.text
    made: dict[str, Any] = answer.json()
    return made


@dataclass
class Tenant:
    """One of several, with a path of its own at the receiver.

    Attributes:
        times: seconds that each round of its work took, and how many kills were in it.
    """

    name: str
    tenant_id: UUID
    client: Client
    receiver: Receiver
    times: list[tuple[float, int]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where its events go."""
        return self.receiver.url(f"/{self.name}")

    def told(self) -> dict[str, str]:
        """The type of the event that told the end of each of its objects."""
        seen = [each.event for each in self.receiver.at(f"/{self.name}")]
        return {event["data"]["id"]: event["type"] for event in seen}

    def num_calm_rounds(self) -> int:
        """Count the rounds in which no service worker was killed."""
        return sum(not num_kills for _, num_kills in self.times)

    def check_signatures(self) -> None:
        """Return if all that was told is signed for this tenant."""
        webhook = Webhook(found_at(self.client, "/v1/webhook_secret")["secret"])
        for each in self.receiver.at(f"/{self.name}"):
            webhook.verify(each.body, each.headers)

    def document(self, text: str) -> str:
        """Upload a text."""
        sent = {"content": text.encode(), "headers": {"Content-Type": "text/plain"}}
        return str(made_at(self.client, "/v1/documents", params={"filename": "a.txt"}, **sent)["id"])

    def summary(self, document: str) -> str:
        """Ask for the summary of a document."""
        body = {"documents": [document], "length": 64, "webhook_url": self.url}
        return str(made_at(self.client, "/v1/summaries", json=body)["data"][0]["id"])

    def work(self, kills: list[int]) -> None:
        """Do a round: a short job, a long one and a summary, each completed and told."""
        began, num_kills, mark = time.monotonic(), len(kills), f"{self.name} {len(self.times)}. "
        wanted = {"task": "summarize", "max_tokens": 32, "webhook_url": self.url}
        short = self.client.submit(mark + "A short text.", **wanted)
        long = self.client.submit(mark + text_of(_LONG_CHARS), **wanted)
        assert (short["state"], long["state"]) == ("queued", "preparing")
        summary = self.summary(self.document(mark + text_of(_LONG_CHARS, start=_LONG_CHARS)))
        expected = {short["id"]: "job.completed", long["id"]: "job.completed", summary: "summary.completed"}
        eventually(lambda: expected.keys() <= self.told().keys(), interval=0.1)
        self.times.append((time.monotonic() - began, len(kills) - num_kills))
        assert expected.items() <= self.told().items()
        for job in (short, long):
            assert self.client.result(job["id"])["output"]
        assert found_at(self.client, f"/v1/summaries/{summary}")["summary"]


@dataclass
class Poison:
    """Rows of one tenant, each of which harms whoever touches it.

    Attributes:
        owner: the tenant.
        document: whose summaries cannot be planned.
        kills: the service workers that were killed as they counted the prompt.
    """

    stack: Stack
    owner: Tenant
    document: str
    prompt: str
    batch: str
    summaries: list[str]
    events: tuple[UUID, UUID]  # tried very often, and never recorded
    kills: list[int] = field(default_factory=list)

    @classmethod
    def plant(cls, stack: Stack, owner: Tenant) -> "Poison":
        """Plant all of it while no service worker runs, so that the first one to come meets it."""
        document = owner.document(text_of(_LONG_CHARS))
        eventually(lambda: found_at(owner.client, f"/v1/documents/{document}")["state"] == "ready")
        stack.hold(SERVICE_WORKER)
        prompt = owner.client.submit(text_of(_LONG_CHARS), task="summarize", max_tokens=32)["id"]
        batch = _unreadable_batch(stack, owner)
        events = _ended_job(stack, owner), _ended_job(stack, owner)
        rows(stack, _PLANT.format(tenant_id=owner.tenant_id, unrecordable=events[1]))
        _try_often(stack, events[0])
        return cls(stack, owner, document, prompt, batch, [owner.summary(document)], events)

    def plant_summary(self) -> None:
        """Plant another summary that cannot be planned."""
        self.summaries.append(self.owner.summary(self.document))

    def kill_counters(self) -> None:
        """Kill each service worker that has counted the prompt, before it can write the count down."""
        url, job_id = self.stack.urls.database_url or "", UUID(self.prompt.removeprefix("job_"))
        with psycopg.connect(url) as holding, psycopg.connect(url, autocommit=True) as looking:
            held_by = [holding.info.backend_pid]

            def is_waiting() -> bool:
                return looking.execute(_IS_WAITING, [job_id]).fetchone() is not None

            def is_blocked() -> bool:
                return looking.execute(_IS_BLOCKED, held_by).fetchone() is not None

            while is_waiting():
                holding.execute(_HOLD_TEXT, [job_id])
                eventually(lambda: is_blocked() or not is_waiting(), interval=0.05)
                blocked = looking.execute(_IS_BLOCKED, held_by).fetchone()
                if blocked is not None:
                    self._kill()
                holding.rollback()
                # What the dead one asked for is never committed; its session ends.
                eventually(lambda pid=blocked: not pid or not looking.execute(_IS_THERE, pid).fetchone())

    def _kill(self) -> None:
        victim = self.stack.pids[SERVICE_WORKER]
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        self.kills.append(victim)
        eventually(lambda: self.stack.pids[SERVICE_WORKER] not in (victim, None))

    def ends(self) -> dict[str, Any]:
        """How each of the rows has ended, or stands."""
        client = self.owner.client
        job, batch = client.job(self.prompt), found_at(client, f"/v1/batches/{self.batch}")
        planned = [found_at(client, f"/v1/summaries/{each}") for each in self.summaries]
        query = "SELECT event_id, state FROM webhook_dispatches WHERE event_id = ANY(%s)"
        dispatches = dict(rows(self.stack, query, list(self.events)))
        return {
            "prompt": (job["state"], (job["error"] or {}).get("code")),
            "batch": (batch["status"], [each["code"] for each in (batch["errors"] or {}).get("data", [])]),
            "summaries": {(each["state"], (each["error"] or {}).get("code")) for each in planned},
            "dispatches": [dispatches[each] for each in self.events],
        }


ENDS: Final = {
    "prompt": ("failed", "prompt_uncountable"),
    "batch": ("failed", ["validation_failed"]),
    "summaries": {("failed", "planning_failed")},
    "dispatches": ["delivered", "delivered"],
}


def _unreadable_batch(stack: Stack, owner: Tenant) -> str:
    """A batch of whose file nothing but noise is left."""
    content = jsonl([chat_line("a"), chat_line("b")])
    sent = {"files": {"file": ("in.jsonl", content)}, "data": {"purpose": "batch"}}
    file = made_at(owner.client, "/v1/files", **sent)["id"]
    asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    batch = made_at(owner.client, "/v1/batches", json=asked)["id"]
    damage = "UPDATE file_parts SET content = 'no frame' WHERE file_id = %s RETURNING 1"
    assert rows(stack, damage, UUID(file.removeprefix("file-"))) == [(1,)]
    return str(batch)


def _ended_job(stack: Stack, owner: Tenant) -> UUID:
    """The event of a job that has ended, and that nobody has told."""
    wanted = {"task": "summarize", "max_tokens": 8, "webhook_url": owner.url}
    job = owner.client.submit("A short text.", **wanted)
    assert owner.client.finished(job["id"])["state"] == "completed"
    query = "SELECT id FROM webhook_events WHERE job_id = %s"
    ((event_id,),) = rows(stack, query, UUID(job["id"].removeprefix("job_")))
    assert isinstance(event_id, UUID)
    return event_id


def _try_often(stack: Stack, event_id: UUID) -> None:
    """As if the event had been tried as often as the log of former releases could count."""
    update = "UPDATE webhook_dispatches SET num_attempts = %s WHERE event_id = %s AND state = 'pending'"
    assert rows(stack, update + " RETURNING num_attempts", _OLD_BOUND, event_id) == [(_OLD_BOUND,)]
    insert = (
        "INSERT INTO webhook_deliveries (id, tenant_id, event_id, attempt, status, outcome, latency_ms)"
        " SELECT gen_random_uuid(), tenant_id, id, %s, 500, 'bad_status', 1 FROM webhook_events WHERE id = %s"
    )
    rows(stack, insert, _OLD_BOUND, event_id)


@pytest.fixture
def poisoner_and_others(stack: Stack, receiver: Receiver) -> Iterator[list[Tenant]]:
    """Three tenants with keys."""
    engine = database.make_engine(DatabaseSettings(url=SecretStr(stack.urls.database_url or "")), name="test")
    made = []
    with database.make_sessions(engine).begin() as session:
        for name in ("p", "a", "b"):
            tenant = tenants.create(session, name)
            key = keys.create(session, tenant_id=tenant.id, name=name, scopes=list(Scope))
            client = Client(replace(stack.urls, api_key=key.secret))
            made.append(Tenant(name, tenant.id, client, receiver))
    engine.dispose()
    yield made
    for each in made:
        each.client.http.close()


def work_until(tenant: Tenant, over: threading.Event, kills: list[int]) -> None:
    """Do rounds of the tenant's work until it is over."""
    while not over.is_set():
        tenant.work(kills)


def test_poisoned_rows_end_by_name_and_other_tenants_work_goes_on_beside_them(
    stack: Stack, poisoner_and_others: list[Tenant]
) -> None:
    owner, *others = poisoner_and_others
    over = threading.Event()
    with ThreadPoolExecutor(len(others) + 1) as pool:
        for _ in range(_USUAL_ROUNDS):
            list(pool.map(lambda each: each.work([]), others))
        poison = Poison.plant(stack, owner)
        working = [pool.submit(work_until, each, over, poison.kills) for each in others]
        killing = pool.submit(poison.kill_counters)
        stack.resume(SERVICE_WORKER)

        def has_ended() -> bool:
            if any(each.done() and each.exception() for each in working):
                return True  # told below
            if poison.ends() != ENDS:
                return False
            if all(each.num_calm_rounds() > _USUAL_ROUNDS for each in others):
                return True
            poison.plant_summary()  # the others' rounds have poison beside them to their end
            return False

        try:
            eventually(has_ended, interval=0.25, timeout=_PATIENCE)
        finally:
            over.set()
            print(figures(others))  # noqa: T201  # for the record
        for each in [killing, *working]:
            each.result(timeout=90)
    check(stack, poison, others)


def check(stack: Stack, poison: Poison, others: list[Tenant]) -> None:
    """The poison ended in as many attempts as it has, and nothing of the others failed or was left."""
    assert poison.ends() == ENDS
    assert len(set(poison.kills)) == len(poison.kills) == COUNTING.max_attempts
    query = "SELECT attempt FROM webhook_deliveries WHERE event_id = %s ORDER BY attempt"
    assert rows(stack, query, poison.events[0]) == [(_OLD_BOUND,), (_OLD_BOUND + 1,)]
    assert rows(stack, query, poison.events[1]) == []
    for each in others:
        each.check_signatures()
    theirs = [each.tenant_id for each in others]
    for table, end in {
        "jobs": "completed",
        "summaries": "completed",
        "webhook_dispatches": "delivered",
    }.items():
        states = f"SELECT DISTINCT state FROM {table} WHERE tenant_id = ANY(%s)"  # noqa: S608  # ours
        eventually(lambda states=states, end=end: rows(stack, states, theirs) == [(end,)], interval=0.1)
    for table in ("jobs", "summaries", "batches", "documents"):
        assert rows(stack, f"SELECT id FROM {table} WHERE lease_id IS NOT NULL") == []  # noqa: S608  # ours


def figures(others: list[Tenant]) -> str:
    """Say how long the others' rounds took: without poison, beside it, and with a kill in them."""
    lines = []
    for each in others:
        usual = [seconds for seconds, _ in each.times[:_USUAL_ROUNDS]]
        beside = each.times[_USUAL_ROUNDS:]
        kinds = {
            "beside poison": [seconds for seconds, num_kills in beside if not num_kills],
            "and killed": [seconds for seconds, num_kills in beside if num_kills],
        }
        middle = statistics.median(usual)
        told = [f"usual {_seconds(usual)}"]
        told += [
            f"{kind} {_seconds(found)}: {statistics.median(found) / middle:.1f} times"
            for kind, found in kinds.items()
            if found
        ]
        lines.append(f"{each.name}: " + "; ".join(told))
    return "\n".join(["", *lines])


def _seconds(found: list[float]) -> str:
    return " ".join(f"{each:.1f}" for each in found) + " s"
