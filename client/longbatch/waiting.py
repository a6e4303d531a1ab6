"""Why a job waits, in words."""

from collections.abc import Mapping
from typing import Final

# By the queue's `reason`. Source: `GET /v1/jobs/{job_id}`.
WAIT_WORDS: Final[Mapping[str, str]] = {
    "dependency": "waiting for other jobs",
    "preparing": "its tokens are being counted",
    "queue_paused": "an operator paused your queue",
    "retry_backoff": "waiting before its next attempt",
    "engine_paused": "an operator paused the engines that could run it",
    "engine_down": "no engine large enough for it is taking jobs",
    "no_engine_fits": "every engine is too small for it",
    "reservation": "there is room, but it is reserved for a job ahead of it",
    "slots": "waiting for a batch slot",
    "blocks": "waiting for free KV-cache blocks",
    "alone": "waiting for an idle engine, to run alone",
    "behind": "others go first",
}
