"""What a name leads to when it is registered."""

import asyncio
import threading
from collections.abc import Collection

import pytest

from api.runtime.destinations import Destinations
from jobs.ids import uuid7
from jobs.webhooks import WebhookUrlError

PUBLIC = "93.184.215.14"


class Names:
    """Answers like a resolver, and counts."""

    def __init__(self, **addresses: Collection[str]) -> None:
        self.addresses = addresses
        self.asked: list[str] = []

    def resolve(self, host: str) -> Collection[str]:
        self.asked.append(host)
        if host not in self.addresses:
            raise OSError
        return self.addresses[host]


def check(names: Names, *urls: str, allowed: Collection[str] = ()) -> None:
    async def run() -> None:
        destinations = Destinations(names.resolve)
        for url in urls:
            await destinations.check(url, allowed_hosts=allowed, param="url", tenant_id="a")

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


class Silence:
    """A resolver that answers for `inner` at once, and for other names when it is told to."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.answers = threading.Event()

    def resolve(self, host: str) -> Collection[str]:
        self.asked.add(host)
        if host != "inner":
            assert self.answers.wait(20)
        return ["10.0.0.8"]


async def register(destinations: Destinations, host: str, tenant_id: str) -> bool:
    """Whether the host may be registered."""
    try:
        await destinations.check(f"https://{host}/", allowed_hosts=(), param="url", tenant_id=tenant_id)
    except WebhookUrlError:
        return False
    return True


def test_names_that_nobody_answers_for_hold_four_threads_until_these_end() -> None:
    silence = Silence()

    async def run() -> None:
        destinations = Destinations(silence.resolve, timeout_seconds=0.5)
        slow = [register(destinations, f"slow-{number}", f"tenant-{number}") for number in range(16)]
        assert all(await asyncio.gather(*slow)), "they are taken unseen"
        assert await register(destinations, "inner", "another"), "no thread is free for it"
        assert len(silence.asked) == 4
        assert await asyncio.to_thread(lambda: True), "the loop's own threads are free"
        silence.answers.set()
        slow_again = [register(destinations, host, "another") for host in silence.asked - {"inner"}]
        assert not any(await asyncio.gather(*slow_again)), "what a thread finds late is remembered"
        assert not await register(destinations, "inner", "another"), "threads are free again"

    asyncio.run(run())


def test_one_tenant_leaves_threads_to_others() -> None:
    silence = Silence()

    async def run() -> None:
        destinations = Destinations(silence.resolve, timeout_seconds=0.2)
        slow = [register(destinations, f"slow-{number}", "greedy") for number in range(16)]
        waiting = asyncio.gather(*slow)
        assert not await register(destinations, "inner", "another")
        assert all(await waiting)
        assert len(silence.asked - {"inner"}) == 2
        silence.answers.set()

    asyncio.run(run())


def test_a_name_that_several_ask_for_at_once_takes_one_thread() -> None:
    names = Names(inner=["10.0.0.8"])

    async def run() -> None:
        destinations = Destinations(names.resolve)
        asking = [register(destinations, "inner", f"tenant-{number}") for number in range(8)]
        assert not any(await asyncio.gather(*asking))

    asyncio.run(run())
    assert names.asked == ["inner"]


def test_a_server_that_a_tenant_has_named_is_not_registered_again_for_a_while() -> None:
    destinations = Destinations()
    one, other = uuid7(), uuid7()
    urls = ["https://a.example/x", "https://a.example/y", "https://b.example/"]
    assert destinations.unnamed(urls, tenant_id=one) == urls
    destinations.note_named(urls[:1], tenant_id=one)
    assert destinations.unnamed(urls, tenant_id=one) == urls[2:]
    assert destinations.unnamed(urls, tenant_id=other) == urls
