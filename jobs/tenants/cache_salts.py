"""What keeps tenants apart in an engine's prefix cache: a salt for each, sent with its requests.

An engine computes a prompt again unless the cache has it, so without a salt the time to a first token could
tell a tenant what another one has had read.
"""

from hashlib import blake2b
from typing import Final
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.models import Installation

_SALT_BYTES: Final = 32  # vLLM's documentation asks for 256 bits
_PURPOSE: Final = b"cache salt"


class CacheSalts:
    """The salts of one database's tenants: the same in every worker, and after every restart.

    Their key is the database's random name, which callers never see.
    """

    def __init__(self, sessions: sessionmaker[Session]) -> None:
        self._sessions = sessions
        self._key = b""

    @property
    def is_ready(self) -> bool:
        """True once the key is read."""
        return bool(self._key)

    def load(self) -> None:
        """Read the key; may block."""
        with transaction(self._sessions) as session:
            self._key = installation_id(session).bytes

    def of(self, tenant_id: UUID) -> str:
        """Return the tenant's salt, as hexadecimal digits."""
        return blake2b(tenant_id.bytes, key=self._key, digest_size=_SALT_BYTES, person=_PURPOSE).hexdigest()


def installation_id(session: Session) -> UUID:
    """Return the random name of this database; the first caller makes it."""
    session.execute(insert(Installation).on_conflict_do_nothing())
    return session.scalars(select(Installation.id)).one()
