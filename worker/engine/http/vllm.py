"""vLLM's own HTTP server: token ids in and out, blocks and requests in its metrics.

Source: vLLM 0.32.0, `/v1/completions` and `/metrics`; `vllm:cache_config_info` of 0.22 to 0.32.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final

from prometheus_client.samples import Sample

from jobs.engines.capacity import blocks_for
from jobs.prompts.abilities import ABILITIES, EMBEDDINGS, LORA, VECTORS
from jobs.prompts.guides import Guide, GuideKind
from jobs.settings import EngineSettings
from worker.engine.abilities import Abilities
from worker.engine.exposition import scrape
from worker.engine.gauges import Gauges
from worker.engine.http.completions import Completions, id_fields
from worker.engine.http.embeddings import embedding
from worker.engine.http.engine import Encoding, HttpKind
from worker.engine.http.models import adapter_names, held
from worker.engine.http.server import HttpServer
from worker.engine.request import Request

_PREFIX: Final = "vllm:"
_ROUNDING: Final = 1e-6  # tokens, of a division of floats


def _fields(request: Request) -> Mapping[str, object]:
    own = {
        "return_token_ids": True,
        "cache_salt": request.cache_salt,
        "bad_words": list(request.sampling.bad_words) or None,
        "logprobs": request.num_top,
        "return_tokens_as_token_ids": None if request.num_top is None else True,
    }
    return {**id_fields(request), **_guided(request.guide), **own}


def _guided(guide: Guide | None) -> Mapping[str, object]:
    """Build the field that guides the answer; that for JSON is OpenAI's, which all releases know."""
    match guide:
        case None:
            return {}
        case Guide(GuideKind.JSON):
            schema = {"name": "answer", "schema": guide.schema, "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case Guide(GuideKind.CHOICE):
            return {"structured_outputs": {"choice": guide.choices}}
        case Guide(kind, content):
            return {"structured_outputs": {kind.removeprefix("guided_"): content}}


async def _gauges(server: HttpServer, _overrides: EngineSettings) -> Gauges | None:
    """Read the metrics of all engines behind the server. Returns None if it shows none.

    Its gauges are those of the last step. One that is absent means that nothing has run yet. With data
    parallelism every engine has a pool of its own: `num_gpu_blocks` is their sum in each engine's labels,
    while usage and capacity are each engine's own.
    """
    samples = await scrape(f"{server.url}/metrics", _PREFIX, make_session=server.session)
    if not samples:
        return None
    sums = {sample.name: 0.0 for sample in samples}
    for sample in samples:
        sums[sample.name] += sample.value
    config, num_engines = _cache_config(samples), _num_engines(samples)
    # Each engine has one block that it never gives to a request.
    max_blocks = max(0, _number(config, "num_gpu_blocks") - num_engines)
    return Gauges(
        active_requests=int(sums.get("vllm:num_requests_running", 0)),
        waiting_requests=int(sums.get("vllm:num_requests_waiting", 0)),
        max_blocks=max_blocks,
        used_blocks=round(sums.get("vllm:kv_cache_usage_perc", 0) / num_engines * max_blocks),
        tokens_per_block=_number(config, "block_size"),
        num_preemptions=_count(sums, "vllm:num_preemptions_total"),
        blocks_per_sequence=blocks_per_sequence(config, num_engines),
        num_ranks=num_engines,
    )


async def _able(server: HttpServer, abilities: Abilities) -> Abilities:
    """Read the model's window and adapters, and whether prefixes are cached: if no metric says `False`."""
    samples = await scrape(f"{server.url}/metrics", _PREFIX, make_session=server.session)
    config = _cache_config(samples or ())
    is_off = config.get("enable_prefix_caching") == "False"
    window = _number(config, "sliding_window")
    found = replace(abilities, reuses_prefix=not is_off, shares_prefix=not is_off, window=window)
    able = held(found, await adapter_names(server))
    return await _embedding_alone(server, await embedding(server, able))


async def _embedding_alone(server: HttpServer, abilities: Abilities) -> Abilities:
    """Leave only vectors to a pooling model: vLLM gives it no route that generates."""
    if EMBEDDINGS in abilities.lacks:
        return abilities
    status, _ = await server.refusal_of("/v1/completions", {})
    if status != HTTPStatus.NOT_FOUND:
        return abilities
    return replace(abilities, lacks=ABILITIES - {EMBEDDINGS})


def _count(sums: Mapping[str, float], name: str) -> int | None:
    return int(sums[name]) if name in sums else None


def _cache_config(samples: Sequence[Sample]) -> Mapping[str, str]:
    return next((each.labels for each in samples if each.name == "vllm:cache_config_info"), {})


def _num_engines(samples: Sequence[Sample]) -> int:
    found = {each.labels.get("engine") for each in samples if each.name == "vllm:cache_config_info"}
    return max(1, len(found))


def blocks_per_sequence(config: Mapping[str, str], num_engines: int) -> int | None:
    """Compute the blocks that a sequence takes besides those of its text: windows, chunks, recurrent states.

    vLLM reports how many sequences of the longest length an engine's pool holds, and how many tokens these
    are. Hence the longest length, and the blocks of one such sequence.

    Args:
        config: the labels of `vllm:cache_config_info`.
        num_engines: engines of the server, whose blocks the labels add up.

    Returns:
        None if the release, one before 0.24, does not report it.
    """
    concurrency, tokens = _real(config, "kv_cache_max_concurrency"), _number(config, "kv_cache_size_tokens")
    blocks, tokens_per_block = _number(config, "num_gpu_blocks"), _number(config, "block_size")
    if not (concurrency and tokens and blocks and tokens_per_block):
        return None
    longest = math.ceil(tokens / concurrency - _ROUNDING)  # vLLM cuts off the fraction of `tokens`
    of_longest = round(blocks / num_engines / concurrency)
    # Fewer than those of the text, where all layers have windows: nothing on top, and less of a long text.
    return max(0, of_longest - blocks_for(longest, tokens_per_block))


def _real(labels: Mapping[str, str], name: str) -> float:
    """Read a number with a fraction among the labels; 0 if it is absent or `None`."""
    try:
        found = float(labels.get(name, ""))
    except ValueError:
        return 0.0
    return found if math.isfinite(found) and found > 0 else 0.0


def _number(labels: Mapping[str, str], name: str) -> int:
    """Read a number among the labels; 0 if it is absent or `None`."""
    text = labels.get(name, "")
    return int(text) if text.isdigit() else 0


VLLM: Final = HttpKind(
    name="vllm",
    owner="vllm",
    words="token ids in and out: jobs continue where they stopped, and cancelling frees the engine",
    abilities=Abilities(
        takes_ids=True,
        gives_ids=True,
        ends_itself=True,
        lacks=VECTORS | {LORA},
        credits_reuse=True,
        keeps_state_in_slot=False,
        shares_prefix=True,
        takes_cache_salt=True,
    ),
    dialect=partial(Completions, fields=_fields),
    hint="vLLM's --max-num-seqs, times --data-parallel-size, is in no metric",
    constant_hint="vLLM reports it from 0.24 on; 0 for a model without windows and recurrent states; for"
    " others: docs/engines.md#what-a-sequence-takes-besides-its-text",
    gauges=_gauges,
    encoding=Encoding("prompt", {"add_special_tokens": False}),
    able=_able,
)
