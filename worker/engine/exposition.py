"""Reading an engine's metrics in the Prometheus text format."""

import asyncio
import math
from collections.abc import Callable
from typing import Final

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from worker.engine.body import body_of
from worker.engine.certificates import trusted

_TIMEOUT_SECONDS: Final = 2.0
# Of metrics; those of an engine with many models are some 100 kB.
_MAX_BYTES: Final = 2**24


async def scrape(
    url: str, prefix: str, *, client: Callable[[], httpx2.AsyncClient] | None = None
) -> list[Sample] | None:
    """Read all samples whose names begin with `prefix`.

    Args:
        url: the address of the metrics.
        prefix: of the engine's own series; other lines are not parsed.
        client: makes the client; None: one without a proxy, as the server is ours.

    Returns:
        None if the address does not answer with metrics.
    """
    try:
        async with (
            asyncio.timeout(_TIMEOUT_SECONDS),
            (client or _plain_client)() as http,
            http.stream("GET", url, timeout=_TIMEOUT_SECONDS) as answer,
        ):
            if not answer.is_success:
                return None
            return parse((await body_of(answer, max_bytes=_MAX_BYTES)).decode(), prefix)
    except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, ValueError):
        return None


def parse(exposition: str, prefix: str) -> list[Sample]:
    """Parse the samples whose names begin with `prefix`. One that is no number, NaN or infinite, is left out.

    Raises:
        ValueError: a line is not in the format.
    """
    lines = [line for line in exposition.splitlines() if line.startswith(prefix)]
    families = text_string_to_metric_families("\n".join([*lines, ""]))
    return [sample for family in families for sample in family.samples if math.isfinite(sample.value)]


def _plain_client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(trust_env=False, verify=trusted())
