"""A database of several hosts, as docs/operations.md tells to name them for failovers."""

import asyncio

from pydantic import SecretStr
from sqlalchemy import Engine, make_url, select, text
from sqlalchemy.orm import Session

from api.runtime.database import Transactions
from cli.stack.ports import free_port
from jobs import database
from jobs.models import DEFAULT_TENANT, Tenant
from jobs.settings import DatabaseSettings


def of_two_hosts(settings: DatabaseSettings) -> DatabaseSettings:
    """The same database behind a host that does not answer."""
    url = make_url(settings.url.get_secret_value())
    hosts = [f"{url.host}:{free_port()}", f"{url.host}:{url.port}"]
    named = url.set(host=None, port=None).update_query_dict(
        {"host": hosts, "target_session_attrs": "read-write"}
    )
    return settings.model_copy(update={"url": SecretStr(named.render_as_string(hide_password=False))})


def tenant_of(session: Session) -> Tenant | None:
    return session.scalar(select(Tenant).where(Tenant.id == DEFAULT_TENANT))


def test_the_host_that_takes_writes_is_found(engine: Engine, database_settings: DatabaseSettings) -> None:  # noqa: ARG001  # the database is migrated
    settings = of_two_hosts(database_settings)
    made = database.make_engine(settings)
    with Session(made) as session:
        assert tenant_of(session) is not None
    made.dispose()

    async def look() -> Tenant | None:
        transactions = Transactions(settings)
        found = await transactions.run(tenant_of, tenant_ids=[DEFAULT_TENANT])
        await transactions.close()
        return found

    assert asyncio.run(look()) is not None


def test_the_server_gives_up_a_process_that_vanished_within_a_minute(
    engine: Engine,  # noqa: ARG001  # the database is migrated
    database_settings: DatabaseSettings,
) -> None:
    made = database.make_engine(database_settings)
    with made.connect() as connection:

        def setting(name: str) -> int:
            return int(connection.scalar(text(f"SELECT setting FROM pg_settings WHERE name = '{name}'")))  # noqa: S608  # our own names

        silent_s = setting("tcp_keepalives_idle") + setting("tcp_keepalives_interval") * setting(
            "tcp_keepalives_count"
        )
        assert 0 < silent_s <= 60
        assert 0 < setting("tcp_user_timeout") <= 60_000
    made.dispose()
