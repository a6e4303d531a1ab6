"""Reading an engine's metrics in the Prometheus text format."""

import asyncio
import math
from collections.abc import Callable
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from worker.engine.sessions import BROKEN, beginning, is_success, session

_TIMEOUT_SECONDS: Final = 2.0
# Of metrics; those of an engine with many models are some 100 kB.
_MAX_BYTES: Final = 2**24


async def scrape(
    url: str, prefix: str, *, make_session: Callable[[], aiohttp.ClientSession] = session
) -> list[Sample] | None:
    """Read all samples whose names begin with `prefix`.

    Args:
        url: the address of the metrics.
        prefix: of the engine's own series; other lines are not parsed.
        make_session: makes the session that reads them.

    Returns:
        None if the address does not answer with metrics.
    """
    try:
        async with (
            asyncio.timeout(_TIMEOUT_SECONDS),
            make_session() as http,
            http.get(url, allow_redirects=False) as answer,
        ):
            if not is_success(answer.status):
                return None
            return parse((await beginning(answer, max_bytes=_MAX_BYTES)).decode(), prefix)
    except (*BROKEN, ValueError):
        return None


def parse(exposition: str, prefix: str) -> list[Sample]:
    """Parse the samples whose names begin with `prefix`. One that is no number, NaN or infinite, is left out.

    Raises:
        ValueError: a line is not in the format.
    """
    lines = [line for line in exposition.splitlines() if line.startswith(prefix)]
    families = text_string_to_metric_families("\n".join([*lines, ""]))
    return [sample for family in families for sample in family.samples if math.isfinite(sample.value)]
