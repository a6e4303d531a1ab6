"""Sealers of tests: one that seals, one with the same key that does not, and one with another key."""

import base64
from collections.abc import Callable
from typing import Final

from sqlalchemy.orm import Session, sessionmaker

from jobs.sealing.content import ContentSealer

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
