"""The gauges of TensorRT-LLM in Triton's metrics: active requests and KV blocks in use."""

from collections.abc import Sequence
from typing import Final

from prometheus_client.samples import Sample

from worker.engine.exposition import scrape
from worker.engine.gauges import Gauges

_PREFIX: Final = "nv_trt_llm_"
# Each field's series and the label that names it. Releases add other labels.
_SERIES: Final = {
    "active_requests": ("nv_trt_llm_request_metrics", "request_type", "active"),
    "waiting_requests": ("nv_trt_llm_request_metrics", "request_type", "waiting"),
    "max_requests": ("nv_trt_llm_request_metrics", "request_type", "max"),
    "max_blocks": ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "max"),
    "used_blocks": ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "used"),
    "tokens_per_block": ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "tokens_per"),
}


async def read_gauges(metrics_url: str | None, model_name: str) -> Gauges | None:
    """Read the model's gauges. Returns None without a URL, an answer or such gauges."""
    samples = await scrape(metrics_url, _PREFIX) if metrics_url is not None else None
    return gauges_of(samples, model_name) if samples else None


def gauges_of(samples: Sequence[Sample], model_name: str) -> Gauges | None:
    """Pick the model's gauges. Returns None if there are none."""
    found: dict[str, int] = {}
    for sample in samples:
        for field, (name, label, kind) in _SERIES.items():
            of_model = sample.labels.get("model", model_name) == model_name
            if sample.name == name and sample.labels.get(label) == kind and of_model:
                found[field] = int(sample.value)
    return Gauges(**found) if found else None
