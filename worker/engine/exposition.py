"""Reading an engine's metrics in the Prometheus text format."""

from collections.abc import Callable
from typing import Final

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_TIMEOUT_SECONDS: Final = 2.0


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
    async with (client or _plain_client)() as http:
        try:
            answer = await http.get(url, timeout=_TIMEOUT_SECONDS)
            return parse(answer.text, prefix) if answer.is_success else None
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError):
            return None


def parse(exposition: str, prefix: str) -> list[Sample]:
    """Parse the samples whose names begin with `prefix`.

    Raises:
        ValueError: a line is not in the format.
    """
    lines = [line for line in exposition.splitlines() if line.startswith(prefix)]
    families = text_string_to_metric_families("\n".join([*lines, ""]))
    return [sample for family in families for sample in family.samples]


def _plain_client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(trust_env=False)
