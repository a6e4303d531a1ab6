"""Plain clients of vLLM: the scripts that people write instead of using a queue."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp  # from the machine's torch image, or with the development lock

from bench.gpu.vllm.marks import END_ID
from bench.stand.documents import Prompt

SERVED_MODEL: Final = "llama"
_EVERYTHING: Final = 100_000
CELERY_POOL: Final = 4  # processes of a Celery worker on a small machine


@dataclass(frozen=True, slots=True)
class Answers:
    """What a client got.

    Attributes:
        began: monotonic time of the open gate.
        ended: monotonic time of the last answer.
        wrong_length: answers of another length than their mark says.
        errors: failed requests by message.
        unfinished: requests without an answer when patience ended.
    """

    began: float
    ended: float
    wrong_length: int
    errors: dict[str, int]
    unfinished: int = 0


def run(url: str, prompts: Sequence[Prompt], *, at_once: int = _EVERYTHING, patience: float = 600) -> Answers:
    """Send all prompts in order, at most `at_once` of them at the same time, and wait for the answers."""
    return asyncio.run(_run(url, prompts, at_once, patience))


async def _run(url: str, prompts: Sequence[Prompt], at_once: int, patience: float) -> Answers:
    gate = asyncio.Semaphore(at_once)
    connector, no_limit = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=no_limit) as http:

        async def one(prompt: Prompt) -> int | str:
            async with gate:
                return await _complete(http, url, prompt)

        began = time.monotonic()
        tasks = [asyncio.create_task(one(each)) for each in prompts]
        done, open_tasks = await asyncio.wait(tasks, timeout=patience)
        ended = time.monotonic()
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
    found = [(task.result(), each) for task, each in zip(tasks, prompts, strict=True) if task in done]
    return Answers(
        began,
        ended,
        wrong_length=sum(isinstance(got, int) and got != each.spec.output_tokens for got, each in found),
        errors=dict(Counter(got for got, _ in found if isinstance(got, str))),
        unfinished=len(open_tasks),
    )


async def _complete(http: aiohttp.ClientSession, url: str, prompt: Prompt) -> int | str:
    """Return the number of output tokens, the end token included, or the server's error."""
    body = {
        "model": SERVED_MODEL,
        "prompt": prompt.ids.tolist(),
        "max_tokens": prompt.spec.max_tokens,
        "temperature": 0,
        "stop_token_ids": [END_ID],
    }
    async with http.post(f"{url}/v1/completions", json=body) as answer:
        if answer.status != 200:
            return f"{answer.status}: {(await answer.text())[:120]}"
        found = await answer.json()
        return int(found["usage"]["completion_tokens"])
