"""Prepares the stack's database: the newest schema, and a first API key."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import SecretStr
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from cli.stack.errors import StackError
from jobs import audit, database
from jobs.database import schema
from jobs.models import DEFAULT_TENANT
from jobs.settings import DatabaseSettings
from jobs.tenants import keys
from jobs.tenants.keys import Scope
from longbatch.whole_files import write_whole

KEY_FILE: Final = "api-key"


@contextmanager
def migrated(url: str) -> Iterator[Engine]:
    """Upgrade the database to the newest schema and yield an engine for it.

    Raises:
        StackError: the upgrade failed.
    """
    engine = database.make_engine(DatabaseSettings(url=SecretStr(url)), name="longbatch-migrate")
    try:
        schema.upgrade(engine)
        yield engine
    except DBAPIError as error:
        raise StackError(f"Cannot upgrade the database to the newest schema: {error.orig}") from error
    finally:
        engine.dispose()


def first_key(engine: Engine, directory: Path) -> str:
    """Return the directory's key while valid, or create one.

    It belongs to the default tenant and has every scope.
    """
    file = directory / KEY_FILE
    with Session(engine) as session, session.begin():
        audit.act_as(session, audit.user_of_process())
        kept = file.read_text().strip() if file.exists() else ""
        row = keys.find(session, kept)
        if row is not None and keys.is_usable(row, database.database_now(session)):
            return kept
        made = keys.create(session, tenant_id=DEFAULT_TENANT, name="local stack", scopes=list(Scope))
    write_whole(file, made.secret + "\n")
    return made.secret
