"""24 mixed jobs on a pool that holds a third of them: through Longbatch, and sent to vLLM all at once.

With `-s` it prints both makespans.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from typing import Final

import httpx2
import pytest
from pydantic import SecretStr

from cli.stack.servers.valkey import EmbeddedValkey
from entry_points import REFERENCE
from jobs.prompts.messages import Message
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import BrokerSettings, DatabaseSettings, JobSettings, Settings
from jobs.states import JobState
from scripted_model import ENDLESS, ScriptedModel
from vllm_server import VllmServer
from worker_support import MODEL, Queue, running_worker

pytestmark = pytest.mark.timeout(900)

_NUM_JOBS: Final = 24
_CONTEXT: Final = 2048
_PATIENCE: Final = 600.0
_PREEMPTIONS: Final = "vllm:num_preemptions_total"

Asked = tuple[str, int]  # a text and max_tokens; each answer has exactly so many


@pytest.fixture(scope="module")
def asked() -> list[Asked]:
    """Short and long prompts with short and long answers."""
    chance = random.Random(5)  # noqa: S311  # the same jobs each time
    found = []
    for number in range(_NUM_JOBS):
        start, length = chance.randrange(100_000), chance.choice([200, 1000, 4000])
        text = f"{number}{ENDLESS}. {REFERENCE[start : start + length]}"
        found.append((text, chance.choice([60, 150, 400])))
    return found


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, asked: list[Asked]
) -> Iterator[VllmServer]:
    """vLLM with slots for all jobs, and blocks for a third of them."""
    tokens = sum(len(_prompt(tokenizer, text)) + max_tokens for text, max_tokens in asked)
    model = ScriptedModel(tokenizer).save(tmp_path_factory.mktemp("scripted"))
    made = VllmServer(
        tmp_path_factory.mktemp("vllm"), model, slots=_NUM_JOBS, context=_CONTEXT, pool_tokens=tokens // 3
    )
    yield made.start()
    made.kill()


def _prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode_messages([Message("user", text)]).tolist()
    return found


async def _all_at_once(url: str, requests: Sequence[dict[str, object]]) -> None:
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=_PATIENCE) as http:
        answers = await asyncio.gather(*(http.post("/v1/completions", json=each) for each in requests))
    for answer, request in zip(answers, requests, strict=True):
        assert answer.is_success, answer.text
        assert answer.json()["usage"]["completion_tokens"] == request["max_tokens"]


def test_vllm_preempts_a_client_that_sends_everything_and_never_us(
    server: VllmServer,
    tokenizer: Tokenizer,
    asked: list[Asked],
    queue: Queue,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
) -> None:
    settings = Settings(
        database=database_settings,
        broker=BrokerSettings(url=SecretStr(valkey.url)),
        engine=server.settings.model_copy(
            update={"model": MODEL, "max_seq_len": _CONTEXT, "max_input_len": _CONTEXT - 1}
        ),
        jobs=JobSettings(),
    )
    with running_worker(settings, tokenizer):
        began = time.monotonic()
        job_ids = [queue.submit(text, max_tokens=max_tokens) for text, max_tokens in asked]
        ended = [queue.ended(job_id, timeout=_PATIENCE) for job_id in job_ids]
        ours = time.monotonic() - began
    assert {job.state for job in ended} == {JobState.COMPLETED}
    assert [job.completion_tokens for job in ended] == [max_tokens for _, max_tokens in asked]
    assert server.total(_PREEMPTIONS) == 0
    requests = [
        {
            "model": "scripted",
            "prompt": _prompt(tokenizer, text),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        for text, max_tokens in asked
    ]
    began = time.monotonic()
    asyncio.run(_all_at_once(server.url, requests))
    theirs = time.monotonic() - began
    num_preemptions = server.total(_PREEMPTIONS)
    print(f"\nours {ours:.1f} s; all at once {theirs:.1f} s, {num_preemptions} preemptions")  # noqa: T201
    assert num_preemptions > 0
