"""Where the webhooks of bulk lines lead: looked up as for a single job, but only so often."""

import asyncio
from collections.abc import Collection

from api.jobs.line_destinations import LineDestinations
from api.runtime.destinations import Destinations


def test_lines_whose_name_leads_to_a_private_address_are_refused_and_look_ups_are_bounded() -> None:
    asked: list[str] = []

    def resolve(host: str) -> Collection[str]:
        asked.append(host)
        if host.startswith("unknown"):
            raise OSError
        return ["10.0.0.1"] if host.startswith("inside") else ["93.184.216.34"]

    async def run() -> list[dict[int, str | None]]:
        destinations = Destinations(resolve)

        async def check(url: str) -> None:
            await destinations.check(url, allowed_hosts=(), param="webhook_url", tenant_id="t")

        lines = LineDestinations(check)
        first = {1: "https://inside.example/a", 2: "https://inside.example/b", 3: "https://unknown.example/"}
        many = {number: f"https://host-{number}.example/" for number in range(10, 110)}
        found = [await lines.check(each) for each in (first, many, {200: "https://inside.example/c"})]
        return [{number: error.param for number, error in each.items()} for each in found]

    first, many, again = asyncio.run(run())
    assert first == {1: "webhook_url", 2: "webhook_url"}
    assert (many, again) == ({}, {200: "webhook_url"})
    assert asked.count("inside.example") == 1
    assert len(asked) == 64
