"""A database of several hosts, as docs/operations.md tells to name them for failovers."""

import asyncio

from pydantic import SecretStr
from sqlalchemy import Engine, make_url, select
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
