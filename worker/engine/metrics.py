"""The engine's gauges in Triton's metrics: active requests and KV blocks in use."""

import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Final

_TIMEOUT_SECONDS: Final = 2.0
# Label order differs between releases, so the kind may be anywhere between the braces.
_SAMPLE: Final = re.compile(
    r"^nv_trt_llm_(?P<family>request|kv_cache_block)_metrics\{(?P<labels>[^}]*)\}\s+(?P<value>\S+)",
    re.MULTILINE,
)
_KIND: Final = re.compile(r'(?:request_type|kv_cache_block_type)="([^"]*)"')
_MODEL: Final = re.compile(r'\bmodel="([^"]*)"')
# Metrics never go through a proxy: the server is ours.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Gauges:
    """One reading of an engine's gauges. It refreshes them only while it iterates; 0 can mean "not yet".

    Attributes:
        active_requests: requests in the executor, without those waiting beyond its batch.
        max_requests: sequences that decode together.
        max_blocks: KV-cache blocks in the pool.
        used_blocks: KV-cache blocks in use.
        tokens_per_block: tokens in one block.
    """

    active_requests: int = 0
    max_requests: int = 0
    max_blocks: int = 0
    used_blocks: int = 0
    tokens_per_block: int = 0

    @property
    def free_blocks(self) -> int:
        """Number of unused blocks."""
        return max(0, self.max_blocks - self.used_blocks)


def read_gauges(metrics_url: str | None, model_name: str) -> Gauges | None:
    """Read the model's gauges. Returns None without a URL, an answer or such gauges."""
    if metrics_url is None:
        return None
    try:
        with _OPENER.open(metrics_url, timeout=_TIMEOUT_SECONDS) as answer:
            return parse_gauges(answer.read().decode(errors="replace"), model_name)
    except (urllib.error.URLError, OSError, ValueError):
        return None


def parse_gauges(exposition: str, model_name: str) -> Gauges | None:
    """Parse the model's gauges from a Prometheus text. Returns None if there are none."""
    found: dict[tuple[str, str], int] = {}
    for sample in _SAMPLE.finditer(exposition):
        kind = _KIND.search(sample["labels"])
        model = _MODEL.search(sample["labels"])
        if kind and (model is None or model[1] == model_name):
            found[sample["family"], kind[1]] = int(float(sample["value"]))
    if not found:
        return None
    return Gauges(
        active_requests=found.get(("request", "active"), 0),
        max_requests=found.get(("request", "max"), 0),
        max_blocks=found.get(("kv_cache_block", "max"), 0),
        used_blocks=found.get(("kv_cache_block", "used"), 0),
        tokens_per_block=found.get(("kv_cache_block", "tokens_per"), 0),
    )
