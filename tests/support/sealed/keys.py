"""Keys for tests of encryption at rest, and sessions that use them."""

import base64
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session, sessionmaker

from jobs import database
from jobs.sealing.content import ContentSealer
from jobs.sealing.keys import name_of
from jobs.settings import DatabaseSettings

OLD_KEY, NEW_KEY, LOST_KEY = (secrets.token_bytes(32) for _ in range(3))
OLD = ContentSealer([OLD_KEY], seals=True)
NEW = ContentSealer([NEW_KEY, OLD_KEY], seals=True)  # and opens what the old one sealed
OPENS = ContentSealer([NEW_KEY, OLD_KEY])
STRANGER = ContentSealer([LOST_KEY], seals=True)
OLD_NAME, NEW_NAME, LOST_NAME = (name_of(key).hex() for key in (OLD_KEY, NEW_KEY, LOST_KEY))


def setting_of(*keys: bytes) -> str:
    """The keys as LONGBATCH_WEBHOOKS__ENCRYPTION_KEY has them, the newest first."""
    return ",".join(base64.b64encode(key).decode() for key in keys)


@contextmanager
def sealing(settings: DatabaseSettings, sealer: ContentSealer) -> Iterator[sessionmaker[Session]]:
    """Sessions of an engine that seals and opens with this."""
    engine = database.make_engine(settings, pool_size=2, name="tests", sealer=sealer)
    try:
        yield database.make_sessions(engine)
    finally:
        engine.dispose()
