"""Any other server with OpenAI's `/v1/completions`: text in, text out, and a capacity that is told.

Source: OpenAI's API reference for completions, and what compatible servers keep of it.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from jobs.prompts.abilities import ABILITIES
from worker.engine.abilities import Abilities
from worker.engine.http.completions import Completions
from worker.engine.http.engine import HttpKind
from worker.engine.request import Request

_TAKEN: Final = frozenset({"temperature", "top_p", "frequency_penalty", "presence_penalty"})


def _fields(request: Request) -> Mapping[str, object]:
    """Build fields that every compatible server knows."""
    return {
        "stop": list(request.stops)[:4] or None,  # at most four; we match all of them ourselves
        "stream_options": {"include_usage": True},
    }


OPENAI: Final = HttpKind(
    name="openai",
    owner="",
    words="text in, text out: jobs start over after a fault, nothing shows its load, and jobs with top_k"
    " are refused",
    # Whether it notices a cut stream is unknown; its blocks stay reserved as if it did not.
    abilities=Abilities(
        takes_ids=False,
        gives_ids=False,
        adds_bos=True,
        notices_cut=False,
        reports_own_end=False,
        # Not OpenAI's, or left out by some servers: they ignore it, or answer with a 400.
        lacks=ABILITIES - _TAKEN,
        credits_reuse=False,
        keeps_state_in_slot=False,
    ),
    # A proxy may have written an error.
    dialect=partial(Completions, fields=_fields, has_ids=False, reports_own_end=False),
    hint="an endpoint of this kind tells nothing of its capacity",
    ready_path="/v1/models",
)
