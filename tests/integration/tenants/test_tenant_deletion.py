"""Deleting a tenant with everything, in parts, whatever is killed on the way."""

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import httpx2
import pytest
import redis
from pydantic import SecretStr
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner

import ending
from api_server import ApiProcess, error_of
from claiming import claims
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import ids, live_output, tenants
from jobs.erasure import parts
from jobs.erasure import tenants as erasure
from jobs.errors import ConflictError, NotFoundError
from jobs.files.storage import DirectoryStore
from jobs.ids import uuid7
from jobs.live_output import Delta
from jobs.models import DEFAULT_TENANT, ApiKey, Base, File, FilePart, Job, Tenant, UsageDay
from jobs.models.tenant import FORMER_TENANTS
from jobs.prompts.counter import PromptCounter
from jobs.prompts.tokenizer import Tokenizer
from jobs.scheduling import halts
from jobs.scheduling.halts import Operator
from jobs.settings import BrokerSettings, DatabaseSettings, Settings
from jobs.states import JobState, StopReason
from jobs.tenants import keys, stored_bytes, usage
from jobs.tenants.keys import NewKey, Scope
from longbatch.cli.main import application
from owned import everything
from searching import stores
from searching.stores import Marks
from support import ENGINE, POLICY, register_engine, runner_of, spec, submit_one
from worker import batches, maintenance, summaries
from worker import erasure as erasing
from worker.duties import ServiceContext
from worker.erasure import TenantErasure, TenantStores


@dataclass
class Doomed:
    """A tenant with rows in every table, bytes in a file store and keys in Redis, and what deletes it."""

    sessions: sessionmaker[Session]
    broker: redis.Redis
    folder: Path
    mark: str = field(default_factory=lambda: f"mark{secrets.token_hex(8)}")

    def __post_init__(self) -> None:
        self.store = DirectoryStore(self.folder)
        with self.sessions.begin() as session:
            row = tenants.create(session, self.mark)
            self.tenant_id = row.id
            self.running = everything.fill(session, row.id, self.mark, self.store)
            assert everything.tables_of(session, row.id) == everything.owned_tables(), (
                "fill the new table too"
            )
            self.job_ids = list(session.scalars(select(Job.id).where(Job.tenant_id == row.id)))
        for job_id in self.job_ids:
            delta = live_output.encode(Delta(at=0, text=self.mark, num_tokens=1))
            self.broker.xadd(live_output.stream_key(job_id), delta)  # type: ignore[arg-type]
        self.broker.set(f"LIMITS:longbatch/{self.tenant_id.hex}/60", "1")

    def order(self) -> None:
        with self.sessions.begin() as session:
            erasure.order(session, session.get_one(Tenant, self.tenant_id), by=Operator())

    def worker(self, *, keeps_usage: bool = False) -> TenantErasure:
        """A service worker's own, as after a start."""
        return TenantErasure(self.sessions, TenantStores(self.store, self.broker), keeps_usage=keeps_usage)

    def end_running(self) -> None:
        with self.sessions.begin() as session:
            assert ending.finish_stopped(session, self.running, StopReason.CANCEL, None)

    @property
    def is_there(self) -> bool:
        with self.sessions() as session:
            return session.get(Tenant, self.tenant_id) is not None

    def traces(self) -> set[str]:
        """Where anything of it is found."""
        words = [self.mark, str(self.tenant_id), self.tenant_id.hex, *(each.hex for each in self.job_ids)]
        marks = Marks([*words, *map(str, self.job_ids)])
        found = stores.in_database(self.sessions, marks) | stores.in_redis(self.broker, marks)
        # A reservation names its job until the engine has told that it is done with it.
        return (found | stores.in_files(self.folder, marks)) - {"reservations.job_id"}


@pytest.fixture
def broker(valkey: EmbeddedValkey) -> redis.Redis:
    return redis.Redis.from_url(valkey.url)


@pytest.fixture
def doomed(sessions: sessionmaker[Session], broker: redis.Redis, tmp_path: Path) -> Doomed:
    return Doomed(sessions, broker, tmp_path)


@pytest.fixture
def others_job(doomed: Doomed) -> Job:
    """Another tenant's, which must not be touched."""
    with doomed.sessions.begin() as session:
        return submit_one(session, spec(prompt="another tenant's words"))


def rounds(work: TenantErasure) -> int:
    """Let it work until it finds nothing to do; how many rounds did something."""
    number = 0
    while work.run_once():
        number += 1
        assert number < 200, "it does not end"
    return number


def test_a_deleted_tenant_leaves_nothing_in_any_store(doomed: Doomed, others_job: Job) -> None:
    assert {"texts.body", "results.output", "checkpoints.output", "file_parts.tenant_id"} <= doomed.traces()
    with doomed.sessions() as session:
        before = stored_bytes.read(session, DEFAULT_TENANT)
    doomed.order()
    work = doomed.worker()
    rounds(work)
    with doomed.sessions() as session:
        assert session.scalars(select(Job.id).where(Job.tenant_id == doomed.tenant_id)).all() == [
            doomed.running.job_id
        ], "only the job that an engine works on is left"
        assert session.get_one(Job, doomed.running.job_id).stop_reason == StopReason.CANCEL
        assert session.get_one(Tenant, doomed.tenant_id).num_removed > 20
    doomed.end_running()
    rounds(work)
    assert not doomed.is_there
    assert doomed.traces() == set()
    with doomed.sessions.begin() as session:
        assert session.get_one(Job, others_job.id).state == JobState.QUEUED
        assert stored_bytes.read(session, DEFAULT_TENANT) == before
        stored_bytes.add_up(session)
        usage.add_up(session)


def test_an_order_lets_nothing_start_and_revokes_the_keys(doomed: Doomed) -> None:
    doomed.order()
    doomed.order()
    with doomed.sessions.begin() as session:
        assert session.scalar(select(func.count()).where(ApiKey.tenant_id == doomed.tenant_id)) == 1
        row = session.scalars(select(ApiKey).where(ApiKey.tenant_id == doomed.tenant_id)).one()
        assert row.revoked_at is not None
        register_engine(session)
        assert claims.claim(session, ENGINE, POLICY) is None
        with pytest.raises(ConflictError, match="being deleted"):
            keys.create(session, tenant_id=doomed.tenant_id, name="late", scopes=[Scope.READ])


def test_the_queue_of_a_tenant_that_goes_stays_paused(
    doomed: Doomed, http: httpx2.Client, database_settings: DatabaseSettings
) -> None:
    doomed.order()
    path = f"/v1/tenants/{ids.tenant_id(doomed.tenant_id)}/queue"
    before = http.get(f"/v1/tenants/{doomed.mark}").json()["queue"]
    for order in ("resume", "pause", "drain"):
        refused = http.post(f"{path}/{order}", json={} if order == "resume" else {"reason": "other"})
        assert (refused.status_code, error_of(refused)["code"]) == (409, "conflict"), order
        assert "being deleted" in error_of(refused)["message"]
    env = {"LONGBATCH_DATABASE__URL": database_settings.url.get_secret_value()}
    said = CliRunner().invoke(application(), ["tenants", "resume", doomed.mark], env=env)
    assert said.exit_code != 0
    assert http.get(f"/v1/tenants/{doomed.mark}").json()["queue"] == before
    with doomed.sessions.begin() as session:
        with pytest.raises(NotFoundError):
            halts.resume_queue(session, uuid7())
        register_engine(session)
        assert claims.claim(session, ENGINE, POLICY) is None


def test_a_key_that_is_being_made_is_revoked_by_the_order_too(doomed: Doomed) -> None:
    with doomed.sessions() as maker:
        made = keys.create(maker, tenant_id=doomed.tenant_id, name="at the same time", scopes=[Scope.READ])
        with doomed.sessions() as session:
            session.execute(text("SET LOCAL lock_timeout = '50ms'"))
            with pytest.raises(OperationalError, match="lock timeout"):
                erasure.order(session, session.get_one(Tenant, doomed.tenant_id), by=Operator())
        maker.commit()
    doomed.order()
    with doomed.sessions() as session:
        assert session.get_one(ApiKey, made.row.id).revoked_at is not None


def test_a_tenant_whose_last_row_went_while_its_key_was_being_made_is_not_found(doomed: Doomed) -> None:
    with doomed.sessions() as session, pytest.raises(NotFoundError):
        keys.create(session, tenant_id=uuid7(), name="late", scopes=[Scope.READ])


class KilledError(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("place", [1, 3, 6, 9, 14, 20])
def test_a_deletion_goes_on_after_a_kill_at_any_part(
    doomed: Doomed, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """Killed after the statements of a part and before its commit, again and again."""
    doomed.order()
    doomed.end_running()
    done: list[int] = []

    def killing(step: parts.Step) -> parts.Step:
        def do(*arguments: object) -> parts.Part:
            part = step(*arguments)  # type: ignore[arg-type]
            done.append(1)
            if part.is_work and len(done) % place == 0 and len(done) < 500:
                raise KilledError
            return part

        return do

    monkeypatch.setattr(parts, "STEPS", [killing(step) for step in parts.STEPS])
    for _ in range(2000):
        try:
            doomed.worker().run_once()
        except KilledError:
            continue
        if not doomed.is_there:
            break
    assert not doomed.is_there
    assert doomed.traces() == set()


def test_rows_that_others_hold_are_removed_later(doomed: Doomed) -> None:
    doomed.order()
    doomed.end_running()
    with doomed.sessions.begin() as session:
        held = select(File.id).where(File.tenant_id == doomed.tenant_id).with_for_update()
        assert session.scalars(held).one()
        rounds(doomed.worker())
        assert doomed.is_there
    rounds(doomed.worker())
    assert not doomed.is_there
    assert doomed.traces() == set()


def test_what_comes_after_its_table_was_emptied_is_removed_too(
    doomed: Doomed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that began before its key was revoked inserts a job, whose event is older than all seen."""
    doomed.order()
    doomed.end_running()
    late: list[Callable[[], object]] = [lambda: _submit(doomed)]
    remove_last = erasure._remove_last

    def remove(session: Session, tenant: Tenant, stores_: parts.Stores) -> parts.Part | None:
        if late:
            late.pop()()
        return remove_last(session, tenant, stores_)

    monkeypatch.setattr(erasure, "_remove_last", remove)
    work = doomed.worker()
    rounds(work)
    assert doomed.is_there
    rounds(work)
    assert not doomed.is_there
    assert doomed.traces() == set()


def unbound_tables() -> set[str]:
    """The tables whose rows of a tenant no foreign key holds to it: none stops the tenant's deletion."""
    return {
        table.name
        for table in Base.metadata.sorted_tables
        if "tenant_id" in table.columns
        and all(key.column.table.name != "tenants" for key in table.columns["tenant_id"].foreign_keys)
    }


@pytest.mark.parametrize("table", sorted(unbound_tables()))
def test_a_late_row_that_no_foreign_key_holds_is_removed_too(
    doomed: Doomed, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """A request that began before its key was revoked writes it after its table was emptied."""
    kept = Base.metadata.tables[table]
    with doomed.sessions() as session:
        rows = session.execute(select(kept).where(kept.c.tenant_id == doomed.tenant_id)).mappings().all()
        # Its own key is gone by then, and would take the row with it.
        key_id = session.scalars(select(ApiKey.id).where(ApiKey.tenant_id == DEFAULT_TENANT)).first()
    late = [dict(row) | ({"api_key_id": key_id} if row.get("api_key_id") else {}) for row in rows]
    assert late
    doomed.order()
    doomed.end_running()
    remove_last = erasure._remove_last

    def remove(session: Session, tenant: Tenant, stores_: parts.Stores) -> parts.Part | None:
        with doomed.sessions.begin() as other:
            while late:
                other.execute(insert(kept).values(late.pop()))
        return remove_last(session, tenant, stores_)

    monkeypatch.setattr(erasure, "_remove_last", remove)
    work = doomed.worker()
    rounds(work)
    assert doomed.is_there
    rounds(work)
    assert not doomed.is_there
    assert doomed.traces() == set()


def _submit(doomed: Doomed) -> None:
    with doomed.sessions.begin() as session:
        submit_one(session, spec(prompt=f"late {doomed.mark}"), tenant_id=doomed.tenant_id)


def test_usage_is_kept_without_the_name_if_a_setting_says_so(doomed: Doomed) -> None:
    doomed.order()
    doomed.end_running()
    with doomed.sessions() as session:
        totals = usage.read_totals(session, first=date.min, last=date.max)[doomed.tenant_id]
    rounds(doomed.worker(keeps_usage=True))
    assert not doomed.is_there
    assert doomed.traces() == set()
    with doomed.sessions.begin() as session:
        kept = usage.read_totals(session, first=date.min, last=date.max)
        assert kept == {FORMER_TENANTS: totals}
        assert totals.num_jobs >= 4
        with pytest.raises(ConflictError):
            erasure.order(session, session.get_one(Tenant, FORMER_TENANTS), by=Operator())
        session.query(UsageDay).delete()
        session.delete(session.get_one(Tenant, FORMER_TENANTS))


def test_a_tenant_that_cannot_be_removed_delays_no_other(doomed: Doomed, tmp_path: Path) -> None:
    doomed.order()
    doomed.end_running()
    second = Doomed(doomed.sessions, doomed.broker, tmp_path / "second")
    second.order()
    second.end_running()
    with doomed.sessions.begin() as session:
        session.query(FilePart).filter_by(tenant_id=doomed.tenant_id).update({"key": "../not a key"})

    class Refusing(DirectoryStore):
        def drop(self, keys: Collection[str]) -> None:
            if "../not a key" in keys:
                raise OSError("disk")
            super().drop(list(keys))

    work = TenantErasure(
        doomed.sessions, TenantStores(Refusing(tmp_path / "second"), doomed.broker), keeps_usage=False
    )
    rounds(work)
    assert doomed.is_there
    assert not second.is_there


def test_few_parts_of_a_file_go_at_once(doomed: Doomed) -> None:
    """A bucket that deletes one by one must be done before Postgres ends the idle transaction."""
    doomed.order()
    doomed.end_running()
    asked: list[int] = []

    class Counting(DirectoryStore):
        def drop(self, keys: Collection[str]) -> None:
            asked.append(len(keys))
            super().drop(list(keys))

    with doomed.sessions.begin() as session:
        file_id = session.scalars(select(File.id).where(File.tenant_id == doomed.tenant_id)).first()
        rows = [
            FilePart(
                file_id=file_id, start=10**6 + at, tenant_id=doomed.tenant_id, num_bytes=1, key=f"{at:032x}"
            )
            for at in range(120)
        ]
        session.add_all(rows)
    rounds(
        TenantErasure(
            doomed.sessions, TenantStores(Counting(doomed.folder), doomed.broker), keeps_usage=False
        )
    )
    assert not doomed.is_there
    assert sum(asked) >= 120
    assert max(asked) <= 50


def test_no_other_duty_waits_for_deletions(
    doomed: Doomed, tokenizer: Tokenizer, database_settings: DatabaseSettings, valkey: EmbeddedValkey
) -> None:
    """Duties of one name share a thread, and a deletion waits for Redis or reads whole tables."""
    broker = BrokerSettings(url=SecretStr(valkey.url))
    context = ServiceContext(
        settings=Settings(database=database_settings, broker=broker),
        sessions=doomed.sessions,
        counter=PromptCounter(tokenizer),
        runner=runner_of(doomed.sessions),
        lease=timedelta(seconds=30),
        find_fault=lambda *_: None,
        is_stopping=lambda: False,
        wake=lambda _: None,
    )
    others = [*maintenance.duties(context), *batches.duties(context), *summaries.duties(context)]
    theirs = {each.name for each in others}
    removing = erasing.duties(context, doomed.broker)
    assert len(removing) == 2
    assert not theirs & {each.name for each in removing}
    assert all(each.wakes == (each.name,) for each in removing), "the next round follows at once"


def test_redis_may_be_down(doomed: Doomed) -> None:
    doomed.order()
    doomed.end_running()
    nobody = redis.Redis(port=1)
    rounds(TenantErasure(doomed.sessions, TenantStores(doomed.store, nobody), keeps_usage=False))
    assert not doomed.is_there


def test_the_default_tenant_is_not_deleted(sessions: sessionmaker[Session]) -> None:
    with sessions() as session, pytest.raises(ConflictError, match="installation"):
        erasure.order(session, session.get_one(Tenant, DEFAULT_TENANT), by=Operator())


def test_operators_delete_over_http_and_see_how_far_it_is(
    http: httpx2.Client, server: ApiProcess, doomed: Doomed
) -> None:
    path = f"/v1/tenants/{ids.tenant_id(doomed.tenant_id)}"
    key = _key(doomed, Scope.OPERATOR)
    with server.client(api_key=key.secret) as theirs:
        own = theirs.delete(path)
        assert (own.status_code, "your own key" in str(error_of(own)["message"])) == (409, True)
    with server.client(api_key=_key(doomed, Scope.SUBMIT).secret) as theirs:
        assert theirs.delete(path).status_code == 403
    assert http.delete("/v1/tenants/default").status_code == 409
    assert http.get(path).json()["deletion"] is None
    ordered = http.delete(path)
    assert ordered.status_code == 202
    assert ordered.json()["deletion"]["num_removed"] == 0
    assert ordered.json()["queue"]["reason"] == erasure.REASON
    assert http.delete(path).json()["deletion"] == ordered.json()["deletion"]
    assert http.post("/v1/keys", json={"tenant": doomed.mark}).status_code == 409
    doomed.worker().run_once()
    assert http.get(path).json()["deletion"]["num_removed"] > 0
    doomed.end_running()
    rounds(doomed.worker())
    assert http.get(path).status_code == http.delete(path).status_code == 404


def _key(doomed: Doomed, scope: Scope) -> NewKey:
    with doomed.sessions.begin() as session:
        return keys.create(session, tenant_id=doomed.tenant_id, name="theirs", scopes=[scope])


def test_the_command_deletes_and_asks_first(doomed: Doomed, database_settings: DatabaseSettings) -> None:
    environment = {"LONGBATCH_DATABASE__URL": database_settings.url.get_secret_value()}

    def run(*arguments: str, answer: str | None = None) -> str:
        done = CliRunner().invoke(application(), ["tenants", *arguments], env=environment, input=answer)
        return f"{done.exit_code} {done.output}"

    assert run("delete", doomed.mark, answer="n\n").startswith("1 ")
    assert run("delete", doomed.mark, "--yes") == f"0 {doomed.mark} is being deleted\n"
    assert '"deleted_at": "20' in run("list", "--json")
    assert run("delete", "default", "--yes").startswith("1 ")
    doomed.end_running()
    rounds(doomed.worker())
    assert run("delete", doomed.mark, "--yes").startswith("1 ")
