"""Haystack's OpenAIChatGenerator."""

from collections.abc import Mapping

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import Tool
from haystack.utils import Secret
from questions import (
    CAPITAL,
    DESCRIBE,
    KEY,
    MAX_TOKENS,
    MODEL,
    SUNNY,
    URL,
    WEATHER,
    WEATHER_PARAMETERS,
    City,
    called,
)

WEATHER_OF = Tool(
    name="weather",
    description="Tell the weather in a city.",
    parameters=WEATHER_PARAMETERS,
    function=lambda city: f"{city}: {SUNNY}",
)


def _ask(*turns: ChatMessage, options: Mapping[str, object] | None = None, **fields: object) -> ChatMessage:
    generator = OpenAIChatGenerator(
        api_key=Secret.from_token(KEY),
        model=MODEL,
        api_base_url=URL,
        max_retries=0,
        generation_kwargs={"temperature": 0, "max_tokens": MAX_TOKENS} | dict(options or {}),
        **fields,
    )
    return generator.run(list(turns))["replies"][0]


def plain() -> object:
    return _ask(ChatMessage.from_user(CAPITAL)).text


def streamed() -> object:
    pieces: list[str] = []

    def take(chunk: StreamingChunk) -> None:
        pieces.append(chunk.content)

    _ask(ChatMessage.from_user(CAPITAL), streaming_callback=take)
    return pieces


def structured() -> object:
    answer = _ask(ChatMessage.from_user(DESCRIBE), options={"response_format": City})
    return City.model_validate_json(answer.text).model_dump()


def tools() -> object:
    question = ChatMessage.from_user(WEATHER)
    asked = _ask(question, tools=[WEATHER_OF], options={"tool_choice": "required"})
    [call] = asked.tool_calls
    told = ChatMessage.from_tool(SUNNY, origin=call)
    last = _ask(question, asked, told, tools=[WEATHER_OF])
    return {"calls": [called(call.tool_name, call.arguments)], "text": last.text}


CALLS = {"plain": plain, "streamed": streamed, "structured": structured, "tools": tools}
