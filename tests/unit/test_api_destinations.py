"""What a name leads to when it is registered."""

import asyncio
from collections.abc import Collection

import pytest

from api.destinations import Destinations
from jobs.webhooks import WebhookUrlError

PUBLIC = "93.184.215.14"


class Names:
    """Answers like a resolver, and counts."""

    def __init__(self, **addresses: Collection[str]) -> None:
        self.addresses = addresses
        self.asked: list[str] = []

    async def resolve(self, host: str) -> Collection[str]:
        self.asked.append(host)
        if host not in self.addresses:
            raise OSError
        return self.addresses[host]


def check(names: Names, *urls: str, allowed: Collection[str] = ()) -> None:
    async def run() -> None:
        destinations = Destinations(names.resolve)
        for url in urls:
            await destinations.check(url, allowed_hosts=allowed, param="url")

    asyncio.run(run())


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.8", "169.254.169.254", "::ffff:10.0.0.8", "fe80::1%eth0"]
)
def test_a_name_that_leads_to_a_private_address_is_refused(address: str) -> None:
    with pytest.raises(WebhookUrlError) as raised:
        check(Names(inner=[PUBLIC, address]), "https://inner/hook")
    assert raised.value.param == "url"


def test_public_names_and_names_without_an_address_are_taken() -> None:
    check(Names(outer=[PUBLIC]), "https://outer/hook", "https://nowhere.example/hook")


def test_an_allowed_host_is_not_looked_up() -> None:
    names = Names(inner=["10.0.0.8"])
    check(names, "http://inner:8080/hook", allowed=["inner"])
    assert names.asked == []


def test_a_name_is_looked_up_once_in_a_while() -> None:
    names = Names(outer=[PUBLIC])
    check(names, "https://outer/1", "https://outer/2")
    assert names.asked == ["outer"]
