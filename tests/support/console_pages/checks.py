"""What holds of the pages of summaries, answers and extractions alike."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Event

from lxml.html import HtmlElement

from console_pages.browser import PROBE, Browser, events, words
from support import PATIENCE

# Text that turns, hides or ends what is around it if a page lets it.
HOSTILE = f"{PROBE} \u202eevil\u2066 \x01\x1b[31m {'long' * 300}"


def check_turning(page: HtmlElement) -> None:
    """Text that turns is on the page, and turns nothing else."""
    turning = [each for each in page.xpath("//main//text()") if "\u202e" in each]
    assert turning
    for each in turning:
        apart = each.getparent().xpath("ancestor-or-self::*[self::bdi or self::dd or self::div][1]")[0]
        assert apart.tag == "bdi" or words(apart) == words(each.getparent()), "it turns nothing else"


def check_buttons(visitor: Browser, address: str, element: str) -> None:
    """The one at this address runs; its buttons cancel it, then delete it."""
    assert visitor.post(f"{address}/delete").status_code == 409
    (action,) = visitor.page(address).xpath("//form[contains(@action, 'cancel')]/@action")
    assert visitor.post(action).headers["location"] == address
    ended = visitor.page(address)
    assert "cancelled" in words(ended.xpath(f"//div[@id='{element}']")[0])
    assert not ended.xpath("//form[contains(@action, 'cancel')]")
    (link,) = ended.xpath("//a[contains(@href, 'delete')]/@href")
    (action,) = visitor.page(link).xpath("//form[contains(@action, 'delete')]/@action")
    assert visitor.post(action).headers["location"] == address.rpartition("/")[0]
    visitor.page(address, status=404)


def check_reader(reader: Browser, open_address: str, ended_address: str) -> None:
    """A reader sees no buttons of one that runs and one that has ended, and the server refuses the forms."""
    for address in (open_address, ended_address):
        page = reader.page(address)
        assert page.xpath("//form[@method='post']/@action") == ["/console/sign-out"]
        assert not page.xpath("//a[contains(@href, 'delete') or contains(@href, 'new')]")
    assert not reader.page(open_address.rpartition("/")[0]).xpath("//a[contains(@href, 'new')]")
    assert reader.post(f"{open_address}/cancel").status_code == 403
    assert reader.post(f"{ended_address}/delete").status_code == 403


def check_follows(
    background: Callable[..., Future[object]],
    visitor: Browser,
    address: str,
    wanted: str,
    move: Callable[[], object],
) -> None:
    """The stream at this address tells what is wanted after this move."""
    opened = Event()
    following = background(events, visitor, address, wanted, opened)
    assert opened.wait(PATIENCE)
    move()
    following.result(PATIENCE)
