"""autobatcher: responses in the background by default, batches with a completion window."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from autobatcher import BatchOpenAI
from questions import CAPITAL, DESCRIBE, KEY, MAX_TOKENS, MODEL, URL, WEATHER, WEATHER_TOOL, City, called

ASKED: Any = {"model": MODEL, "max_tokens": MAX_TOKENS, "temperature": 0}
BATCHES = {"completion_window": "24h"}
FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "city", "strict": True, "schema": City.model_json_schema()},
}


def _run(options: Mapping[str, Any], ask: Callable[[BatchOpenAI], Awaitable[object]]) -> object:
    async def running() -> object:
        client = BatchOpenAI(
            base_url=URL,
            api_key=KEY,
            max_retries=0,
            max_poll_retries=0,
            poll_interval_seconds=0.2,
            batch_window_seconds=0.2,
            **options,
        )
        async with client:
            return await ask(client)

    return asyncio.run(running())


async def _say(client: BatchOpenAI, text: str, **fields: Any) -> Any:  # noqa: ANN401  # the client's message
    turns: Any = [{"role": "user", "content": text}]
    return (await client.chat.completions.create(messages=turns, **ASKED, **fields)).choices[0].message


async def _plain(client: BatchOpenAI) -> object:
    return (await _say(client, CAPITAL)).content


async def _structured(client: BatchOpenAI) -> object:
    return json.loads((await _say(client, DESCRIBE, response_format=FORMAT)).content)


async def _tools(client: BatchOpenAI) -> object:
    message = await _say(client, WEATHER, tools=[WEATHER_TOOL], tool_choice="required")
    calls = message.tool_calls or []
    return {"calls": [called(each.function.name, json.loads(each.function.arguments)) for each in calls]}


CALLS = {
    "plain": partial(_run, {}, _plain),
    "structured": partial(_run, {}, _structured),
    "tools": partial(_run, {}, _tools),
    "plain in batches": partial(_run, BATCHES, _plain),
    "structured in batches": partial(_run, BATCHES, _structured),
    "tools in batches": partial(_run, BATCHES, _tools),
}
