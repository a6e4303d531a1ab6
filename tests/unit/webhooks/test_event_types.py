"""An endpoint's filter can name every event that docs/webhooks.md tells of."""

import re
from pathlib import Path
from typing import get_args

from api.webhooks.schemas import EventType

MANUAL = Path(__file__).resolve().parents[3] / "docs" / "webhooks.md"
# Sent to the endpoint that asked for it, whatever its filter.
TRIAL = "webhook_endpoint.test"


def test_a_filter_can_name_every_event_of_the_manual() -> None:
    rows = re.findall(r"^\| (`[a-z_]+\.[a-z_]+`.*?) \|", MANUAL.read_text(encoding="utf-8"), re.MULTILINE)
    told = {event for row in rows for event in re.findall(r"`([a-z_]+\.[a-z_]+)`", row)}
    assert len(told) > 20
    assert told - {TRIAL} == {*get_args(EventType)} - {"*"}
