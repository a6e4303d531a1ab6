"""Two walls between tenants, each tested with the other one taken away."""

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, delete, func, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from jobs import database, lifecycle, queries, tenants
from jobs.database import schema, statements
from jobs.database.statements import Statement
from jobs.models import DEFAULT_TENANT, Base, Job, PromptText, Tenant, WebhookEvent
from jobs.settings import DatabaseSettings
from jobs.states import JobState
from jobs.tenants import isolation
from jobs.tenants.isolation import APP_ROLE, WORKER_ROLE, TenantSession
from migrations.isolation import SHARED
from support import job_in, spec, submit_one

# Tables without tenant_id whose rows follow those of another table, or are nobody's.
THROUGH_ANOTHER = {"attempts", "tenants", "results", "checkpoints", "webhook_deliveries"}
NOBODYS = {"workers", *SHARED, "reservations", "alembic_version", "installation", "stray_parts"}


@dataclass(frozen=True)
class Theirs:
    """Another tenant with a finished and a queued job."""

    tenant_id: UUID
    done: Job
    queued: Job


@pytest.fixture
def theirs(sessions: sessionmaker[Session]) -> Theirs:
    with sessions.begin() as session:
        tenant = tenants.create(session, f"t-{secrets.token_hex(4)}")
        done = job_in(session, JobState.COMPLETED)
        session.execute(text("UPDATE jobs SET tenant_id = :id"), {"id": tenant.id})
        session.execute(text("UPDATE texts SET tenant_id = :id"), {"id": tenant.id})
        session.execute(text("UPDATE webhook_events SET tenant_id = :id"), {"id": tenant.id})
        session.execute(text("UPDATE usage_entries SET tenant_id = :id"), {"id": tenant.id})
        queued = submit_one(session, spec(), tenant_id=tenant.id)
        return Theirs(tenant.id, done, queued)


@pytest.fixture
def mine(sessions: sessionmaker[Session], theirs: Theirs) -> Job:  # noqa: ARG001  # stored before
    with sessions.begin() as session:
        return submit_one(session)


@pytest.fixture
def bound(engine: Engine, mine: Job) -> Iterator[TenantSession]:  # noqa: ARG001  # stored before
    with TenantSession(engine) as session:
        isolation.enter(session, [DEFAULT_TENANT])
        yield session
        session.rollback()


def test_row_level_security_alone_hides_others_rows_from_every_query(
    bound: TenantSession, mine: Job, theirs: Theirs
) -> None:
    """Plain SQL: the first wall sees ORM queries only, so these have nothing but the second."""
    assert bound.scalars(text("SELECT id FROM jobs")).all() == [mine.id]
    assert bound.scalars(text("SELECT name FROM tenants")).all() == ["default"]
    for table in ("results", "webhook_events", "checkpoints", "usage_entries", "usage_days"):
        assert bound.scalar(text(f"SELECT count(*) FROM {table}")) == 0, table  # noqa: S608  # ours
    assert bound.scalars(text("SELECT tenant_id FROM texts")).all() == [DEFAULT_TENANT]
    changed = text("UPDATE jobs SET stop_reason = 'cancel' WHERE id = :id RETURNING id")
    assert bound.execute(changed, {"id": theirs.queued.id}).all() == []
    gone = text("DELETE FROM jobs RETURNING id")
    assert bound.scalars(gone).all() == [mine.id]


def test_row_level_security_refuses_rows_in_another_s_name(bound: TenantSession, theirs: Theirs) -> None:
    with pytest.raises(DBAPIError, match="row-level security"):
        submit_one(bound, tenant_id=theirs.tenant_id)


def test_the_api_s_role_cannot_give_itself_keys_or_limits(bound: TenantSession, theirs: Theirs) -> None:
    for statement in (
        "UPDATE api_keys SET scopes = ARRAY['admin']",
        "SELECT secret_sha256 FROM api_keys",
        "INSERT INTO tenant_limits (tenant_id) VALUES (:mine)",
        "UPDATE tenants SET weight = 1000",
        "DELETE FROM usage_days",
        "SELECT * FROM alembic_version",
        f"CREATE TABLE x{theirs.tenant_id.hex} (id int)",
    ):
        with pytest.raises(DBAPIError, match="permission denied"), bound.begin_nested():
            bound.execute(text(statement), {"mine": DEFAULT_TENANT} if ":mine" in statement else {})


def test_a_temporary_table_hides_no_table_from_what_runs_as_the_owner(
    bound: TenantSession, engine: Engine, mine: Job
) -> None:
    with engine.connect() as connection:
        before = connection.scalar(text("SELECT count(*) FROM stored_notes"))
        paths = connection.scalars(
            text(
                "SELECT (SELECT s FROM unnest(proconfig) AS s WHERE s LIKE 'search_path=%') FROM pg_proc"
                " WHERE prosecdef AND pronamespace = current_schema()::regnamespace"
            )
        ).all()
    bound.execute(text("CREATE TEMP TABLE stored_notes (tenant_id uuid, num_bytes bigint) ON COMMIT DROP"))
    submit_one(bound, spec(prompt="a text of its own"))
    assert bound.scalar(text("SELECT count(*) FROM pg_temp.stored_notes")) == 0
    schema = bound.scalar(text("SELECT current_schema()"))
    bound.execute(text("RESET ROLE"))
    noted = bound.scalar(text(f'SELECT count(*) FROM "{schema}".stored_notes'))  # noqa: S608  # ours
    assert (noted or 0) > (before or 0), mine.id
    assert len(paths) > 10
    assert [path for path in paths if not re.fullmatch(r"search_path=.+, pg_temp", path or "")] == []


def test_a_query_that_forgot_its_filter_gets_it(engine: Engine, mine: Job, theirs: Theirs) -> None:
    """As a login that no policy binds: only the condition that every ORM query gets is left."""
    with TenantSession(engine) as session:
        session.connection().info["longbatch.roles"] = frozenset()
        isolation.enter(session, [DEFAULT_TENANT])
        assert session.scalar(text("SELECT count(*) FROM jobs")) == 3, "nothing binds this session"
        assert session.scalars(select(Job.id)).all() == [mine.id]
        assert session.get(Job, theirs.done.id) is None
        both = [mine.id, theirs.done.id]
        assert set(queries.find_jobs(session, job_ids=both, ended_ids=both)) == {mine.id}
        assert session.scalars(select(Tenant.name)).all() == ["default"]
        assert session.scalar(select(func.count()).select_from(PromptText)) == 1
        assert session.scalar(select(func.count(WebhookEvent.id))) == 0
        changed = update(Job).values(stop_reason="cancel").returning(Job.id)
        assert session.scalars(changed).all() == [mine.id]
        assert session.scalars(delete(Job).returning(Job.id)).all() == [mine.id]
        session.rollback()
        session.connection().info.pop("longbatch.roles", None)


def test_a_statement_is_bound_whichever_way_it_takes(
    engine: Engine,
    mine: Job,
    theirs: Theirs,  # noqa: ARG001  # stored before
) -> None:
    with TenantSession(engine) as session:
        isolation.enter(session, [DEFAULT_TENANT])
        assert statements.fetch(session, Statement("SELECT id FROM jobs"), {}) == [(mine.id,)]
        assert session.execute(text("SELECT current_user")).scalar_one() == isolation.APP_ROLE
        assert list(session.execute(text("SELECT id FROM jobs")).scalars()) == [mine.id]


def test_several_tenants_at_once_are_all_that_is_seen(engine: Engine, mine: Job, theirs: Theirs) -> None:
    with TenantSession(engine) as session:
        isolation.enter(session, [DEFAULT_TENANT, theirs.tenant_id])
        found = queries.find_jobs(session, job_ids=[mine.id, theirs.done.id], ended_ids=[])
        assert set(found) == {mine.id, theirs.done.id}
    with TenantSession(engine) as session:
        isolation.enter(session, [theirs.tenant_id])
        assert set(session.scalars(select(Job.id))) == {theirs.done.id, theirs.queued.id}


def test_looking_across_tenants_writes_nothing(engine: Engine, mine: Job, theirs: Theirs) -> None:
    with TenantSession(engine) as session:
        isolation.enter_across(session)
        assert set(session.scalars(select(Job.id))) == {mine.id, theirs.done.id, theirs.queued.id}
        with pytest.raises(DBAPIError, match="read-only"):
            lifecycle.cancel(session, theirs.queued.id, tenant_id=theirs.tenant_id)


def test_the_binding_ends_with_its_transaction(engine: Engine, mine: Job) -> None:  # noqa: ARG001  # stored
    with TenantSession(engine) as session:
        isolation.enter(session, [DEFAULT_TENANT])
        session.commit()
        left = "SELECT current_user, coalesce(current_setting('app.tenant_ids', true), '')"
        assert session.execute(text(left)).one() == ("longbatch", "")


def test_an_owner_without_powers_over_the_server_is_bound_too(
    engine: Engine, database_settings: DatabaseSettings
) -> None:
    """One login that owns the tables and may create roles, but is no superuser; then one that may not."""
    url = make_url(database_settings.url.get_secret_value())
    for option, expected in (("CREATEROLE", True), ("NOCREATEROLE", False)):
        name = f"own_{secrets.token_hex(3)}"
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text(f"CREATE ROLE {name} LOGIN PASSWORD 'x' {option}"))
            if option == "CREATEROLE":  # as if it had made them itself
                connection.execute(text(f"GRANT {APP_ROLE}, {WORKER_ROLE} TO {name} WITH ADMIN OPTION"))
            connection.execute(text(f"CREATE DATABASE {name} OWNER {name}"))
        named = url.set(username=name, password="x", database=name)
        made = database.make_engine(
            DatabaseSettings(url=SecretStr(named.render_as_string(hide_password=False))), pool_size=1
        )
        try:
            schema.upgrade(made)
            with TenantSession(made) as session, session.begin():
                isolation.enter(session, [DEFAULT_TENANT])
                assert isolation.is_bound(session) is expected
                submit_one(session)
        finally:
            made.dispose()
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text(f"DROP DATABASE {name}"))
                connection.execute(text(f"DROP OWNED BY {name}"))
                connection.execute(text(f"DROP ROLE {name}"))


def test_every_table_with_rows_of_tenants_is_protected(engine: Engine) -> None:
    """A table that a later revision adds must not be forgotten."""
    with engine.connect() as connection:
        protected = set(connection.scalars(text("SELECT relname FROM pg_class WHERE relrowsecurity")))
        policies = connection.execute(text("SELECT tablename, policyname FROM pg_policies")).all()
    for table in Base.metadata.sorted_tables:
        if "tenant_id" in table.columns or table.name in THROUGH_ANOTHER:
            assert table.name in protected, table.name
            assert {(table.name, "tenant"), (table.name, "across_tenants")} <= set(policies)
        else:
            assert table.name in NOBODYS, f"whose are the rows of {table.name}?"
