"""The schema of the database: upgrade it, downgrade it, and read its revision."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine
from sqlalchemy.orm import Session

_SCRIPTS = Path(__file__).resolve().parents[2] / "migrations"


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Upgrade the schema to this revision. Safe when several processes start at once."""
    with engine.connect() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.commit()


def downgrade(engine: Engine, revision: str) -> None:
    """Downgrade the schema to this earlier revision."""
    with engine.connect() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.downgrade(config, revision)
        connection.commit()


def head() -> str:
    """Return the newest revision that this code knows."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    if found is None:
        raise RuntimeError(f"no migrations under {_SCRIPTS}")
    return found


def current(session: Session) -> str | None:
    """Read the revision of the database.

    Returns:
        None if it has no schema yet.
    """
    return MigrationContext.configure(session.connection()).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    return config
