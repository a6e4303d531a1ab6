"""A session that Postgres ended: its caller may try again, wherever the transaction was."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from api.runtime.database import Transactions
from jobs.errors import UnavailableError
from jobs.models import DEFAULT_TENANT
from jobs.settings import DatabaseSettings
from support import eventually


@pytest.mark.parametrize(("sends_more", "num_tries"), [(False, 1), (True, 2)])
def test_a_session_that_was_idle_in_a_transaction_for_too_long_is_worth_another_try(
    database_settings: DatabaseSettings,
    sessions: sessionmaker[Session],
    *,
    sends_more: bool,
    num_tries: int,
) -> None:
    """As after a partition: what the caller sent, perhaps its COMMIT, arrived too late."""
    tried: list[int] = []

    def verb(session: Session) -> None:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        tried.append(pid)

        def has_ended() -> bool:
            with sessions() as other:
                found = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
                return other.scalar(found, {"pid": pid}) == 0

        eventually(has_ended)
        if sends_more:
            session.execute(text("SELECT 1"))

    async def run() -> None:
        transactions = Transactions(
            database_settings.model_copy(update={"idle_in_transaction_timeout_seconds": 0.1})
        )
        try:
            await transactions.run(verb, tenant_ids=[DEFAULT_TENANT])
        finally:
            await transactions.close()

    with pytest.raises(UnavailableError):
        asyncio.run(run())
    assert len(tried) == num_tries, "once more only if nothing can have been committed"
