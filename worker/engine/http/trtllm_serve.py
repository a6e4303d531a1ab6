"""`trtllm-serve`: TensorRT-LLM's OpenAI-compatible server, asked for token ids instead of text.

Source: TensorRT-LLM main of 2026 and 1.1, `/v1/completions` and `/prometheus/metrics`. It was never run here;
the tests speak to a stand-in that is written from the same sources.
"""

from collections.abc import Mapping
from functools import partial
from typing import Final

from jobs.prompts.abilities import LORA, SCORED, VECTORS
from jobs.prompts.guides import Guide, GuideKind, choice_grammar
from jobs.settings import EngineSettings
from worker.engine.abilities import Abilities
from worker.engine.exposition import scrape
from worker.engine.gauges import Gauges
from worker.engine.http.completions import Completions, id_fields
from worker.engine.http.engine import HttpKind
from worker.engine.http.server import HttpServer
from worker.engine.request import Request

_PREFIX: Final = "trtllm_"


def _fields(request: Request) -> Mapping[str, object]:
    """Build the server's own fields. It refuses every one that it does not know."""
    found = {
        **id_fields(request),
        "response_format": request.guide and _format(request.guide),
        "add_special_tokens": False,
        "detokenize": False,
    }
    return found | {"top_k": 1} if request.sampling.is_greedy else found


def _format(guide: Guide) -> Mapping[str, object]:
    match guide.kind:
        case GuideKind.JSON:
            return {"type": "json", "schema": guide.schema}
        case GuideKind.REGEX:
            return {"type": "regex", "regex": guide.content}
        case GuideKind.CHOICE:
            return {"type": "ebnf", "ebnf": choice_grammar(guide.choices)}
        case GuideKind.GRAMMAR:
            return {"type": "ebnf", "ebnf": guide.content}


async def _gauges(server: HttpServer, _overrides: EngineSettings) -> Gauges | None:
    """Read the engine's metrics. Returns None if it has none of blocks."""
    samples = await scrape(f"{server.url}/prometheus/metrics", _PREFIX, make_session=server.session)
    found = {each.name: int(each.value) for each in samples or ()}
    if "trtllm_kv_cache_max_blocks" not in found:
        return None
    return Gauges(
        active_requests=found.get("trtllm_num_requests_running", 0),
        waiting_requests=found.get("trtllm_num_requests_waiting", 0),
        max_requests=found.get("trtllm_max_batch_size_runtime", 0)
        or found.get("trtllm_max_batch_size_static", 0),
        max_blocks=found["trtllm_kv_cache_max_blocks"],
        used_blocks=found.get("trtllm_kv_cache_used_blocks", 0),
        tokens_per_block=found.get("trtllm_kv_cache_tokens_per_block", 0),
    )


TRTLLM_SERVE: Final = HttpKind(
    name="trtllm-serve",
    owner="tensorrt_llm",
    words="token ids in and out: jobs continue where they stopped; cancelling takes up to a second",
    abilities=Abilities(
        takes_ids=True,
        gives_ids=True,
        ends_itself=True,
        lacks=SCORED | VECTORS | {"logit_bias", "bad_words", LORA},  # 1.1 refuses them
        credits_reuse=False,  # only newer releases do
        keeps_state_in_slot=False,
    ),
    # Nearly every exception of the server becomes a 400.
    dialect=partial(Completions, fields=_fields, refuses_reliably=False),
    hint="trtllm-serve's --max_batch_size and KV pool; only newer releases show them, with"
    " return_perf_metrics",
    gauges=_gauges,
)
