"""The types and limits of fields that several routes share."""

from typing import Final

Seconds = int

MIN_EXPIRY_SECONDS: Final = 3600
MAX_EXPIRY_SECONDS: Final = 2_592_000  # 30 days
