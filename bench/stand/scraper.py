"""A scraper that reads metrics every second, as Prometheus may be told to."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import httpx2

EVERY_S: Final = 1.0


@dataclass
class Scrapes:
    """What was read.

    Attributes:
        seconds: how long each scrape took.
        num_bytes: of the last scrape of each URL.
        failures: scrapes that got no metrics.
    """

    seconds: list[float] = field(default_factory=list)
    num_bytes: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


@contextmanager
def scraping(urls: Sequence[str]) -> Iterator[Scrapes]:
    """Scrape these URLs for the block, once a second, at once for the first time."""
    found, over = Scrapes(), threading.Event()

    def scrape() -> None:
        with httpx2.Client(trust_env=False, timeout=10) as http:
            while True:
                began = time.monotonic()
                for url in urls:
                    _scrape_one(http, url, found)
                if over.wait(max(0.0, EVERY_S - (time.monotonic() - began))):
                    return

    thread = threading.Thread(target=scrape, name="scraper")
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _scrape_one(http: httpx2.Client, url: str, found: Scrapes) -> None:
    began = time.monotonic()
    try:
        text = http.get(url).raise_for_status().text
    except httpx2.HTTPError as error:
        found.failures.append(f"{url}: {type(error).__name__}")
        return
    if "longbatch_jobs_ended_total" not in text:
        found.failures.append(f"{url}: no metrics of ours")
    found.seconds.append(time.monotonic() - began)
    found.num_bytes[url] = len(text)
