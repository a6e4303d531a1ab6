"""openai-agents, in its default mode (`/v1/responses`) and over chat completions."""

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.models.interface import Model
from openai import AsyncOpenAI
from questions import CAPITAL, DESCRIBE, KEY, MAX_TOKENS, MODEL, SUNNY, URL, WEATHER, City, called

set_tracing_disabled(disabled=True)
SETTINGS = ModelSettings(temperature=0, max_tokens=MAX_TOKENS)
CITIES: list[str] = []


def _client() -> AsyncOpenAI:
    """One for each call, as its connections belong to an event loop."""
    return AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0)


def _responses() -> Model:
    return OpenAIResponsesModel(MODEL, _client())


def _chat() -> Model:
    return OpenAIChatCompletionsModel(MODEL, _client())


@function_tool
def weather(city: str) -> str:
    """Tell the weather in a city."""
    CITIES.append(city)
    return f"{city}: {SUNNY}"


def _agent(model: Model, **fields: object) -> Agent:
    return Agent(name="assistant", model=model, **({"model_settings": SETTINGS} | fields))


def _plain(model: Model) -> object:
    return Runner.run_sync(_agent(model), CAPITAL).final_output


def _streamed(model: Model) -> object:
    async def pieces() -> list[str]:
        running = Runner.run_streamed(_agent(model), CAPITAL)
        return [
            each.data.delta
            async for each in running.stream_events()
            if each.type == "raw_response_event" and each.data.type == "response.output_text.delta"
        ]

    return asyncio.run(pieces())


def _structured(model: Model) -> object:
    return Runner.run_sync(_agent(model, output_type=City), DESCRIBE).final_output.model_dump()


def _tools(model: Model) -> object:
    settings = SETTINGS.resolve(ModelSettings(tool_choice="required"))
    CITIES.clear()
    ended = Runner.run_sync(_agent(model, tools=[weather], model_settings=settings), WEATHER)
    return {"calls": [called("weather", {"city": each}) for each in CITIES], "text": ended.final_output}


CALLS = {
    "plain": lambda: _plain(_responses()),
    "streamed": lambda: _streamed(_responses()),
    "structured": lambda: _structured(_responses()),
    "tools": lambda: _tools(_responses()),
    "chat plain": lambda: _plain(_chat()),
    "chat streamed": lambda: _streamed(_chat()),
    "chat structured": lambda: _structured(_chat()),
    "chat tools": lambda: _tools(_chat()),
}
