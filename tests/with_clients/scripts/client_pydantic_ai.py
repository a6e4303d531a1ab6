"""pydantic-ai's agents: an answer that has a type is a tool that must be called."""

import asyncio
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from questions import CAPITAL, DESCRIBE, KEY, MAX_TOKENS, MODEL, URL, City, called

SETTINGS = ModelSettings(temperature=0, max_tokens=MAX_TOKENS)


def _provider() -> OpenAIProvider:
    """One for each call, as its connections belong to an event loop."""
    return OpenAIProvider(openai_client=AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0))


def _agent(**fields: Any) -> Agent[None, Any]:  # noqa: ANN401  # of an agent
    return Agent(OpenAIChatModel(MODEL, provider=_provider()), model_settings=SETTINGS, **fields)


def plain() -> object:
    return _agent().run_sync(CAPITAL).output


def streamed() -> object:
    async def pieces() -> list[str]:
        async with _agent().run_stream(CAPITAL) as running:
            return [each async for each in running.stream_text(delta=True, debounce_by=None)]

    return asyncio.run(pieces())


def structured() -> object:
    found = _agent(output_type=NativeOutput(City)).run_sync(DESCRIBE)
    return found.output.model_dump()


def tools() -> object:
    """A typed answer in pydantic-ai's own default, which is a call of a tool that must be made."""
    found = _agent(output_type=City).run_sync(DESCRIBE)
    return {"calls": [called("final_result", found.output.model_dump())]}


def responses() -> object:
    model = OpenAIResponsesModel(MODEL, provider=_provider())
    return Agent(model, model_settings=SETTINGS).run_sync(CAPITAL).output


CALLS = {
    "plain": plain,
    "streamed": streamed,
    "structured": structured,
    "tools": tools,
    "responses": responses,
}
