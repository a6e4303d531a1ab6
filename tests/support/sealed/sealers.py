"""Sealers of tests: one that seals, one with the same key that does not, and one with another key."""

import base64
from collections.abc import Callable
from typing import Final

from pydantic import SecretStr
from sqlalchemy.orm import Session, sessionmaker

from jobs.sealing.content import ContentSealer
from jobs.settings import Settings

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
SEALS: Final = ContentSealer([KEY], seals=True)
OPENS: Final = ContentSealer([KEY])
SEALS_OTHERWISE: Final = ContentSealer([OTHER_KEY], seals=True)
# As settings have them.
VARIABLES: Final = {
    "LONGBATCH_DATABASE__ENCRYPT_CONTENT": "true",
    "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY": base64.b64encode(KEY).decode(),
}

Connect = Callable[[ContentSealer], sessionmaker[Session]]


def sealing(settings: Settings) -> Settings:
    """The settings of a worker that seals."""
    changed = {
        "database": {"encrypt_content": True},
        "webhooks": {"encryption_key": SecretStr(VARIABLES["LONGBATCH_WEBHOOKS__ENCRYPTION_KEY"])},
    }
    return settings.model_copy(
        update={name: getattr(settings, name).model_copy(update=each) for name, each in changed.items()}
    )
