"""Names of newer Pythons: the client runs from 3.10 on."""

import sys
from datetime import datetime, timezone
from typing import Final

UTC: Final = timezone.utc

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """An enumeration whose members are texts."""

        __str__ = str.__str__
        __format__ = str.__format__  # type: ignore[assignment]  # of both bases


def moment_of(text: str) -> datetime:
    """Parse a time of the API, which may end in `Z`."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


__all__ = ["UTC", "StrEnum", "moment_of"]
