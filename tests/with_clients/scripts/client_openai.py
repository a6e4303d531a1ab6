"""OpenAI's own client."""

import json
from typing import Any

from openai import OpenAI
from questions import (
    CAPITAL,
    DESCRIBE,
    KEY,
    MAX_TOKENS,
    MODEL,
    SUNNY,
    URL,
    WEATHER,
    WEATHER_TOOL,
    City,
    called,
)

CLIENT = OpenAI(base_url=URL, api_key=KEY, max_retries=0)
ASKED: Any = {"model": MODEL, "max_tokens": MAX_TOKENS, "temperature": 0}


def _user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def plain() -> object:
    answer = CLIENT.chat.completions.create(messages=_user(CAPITAL), **ASKED)
    return answer.choices[0].message.content


def streamed() -> object:
    stream = CLIENT.chat.completions.create(messages=_user(CAPITAL), stream=True, **ASKED)
    return [each.choices[0].delta.content or "" for each in stream]


def structured() -> object:
    answer = CLIENT.chat.completions.parse(messages=_user(DESCRIBE), response_format=City, **ASKED)
    parsed = answer.choices[0].message.parsed
    return parsed and parsed.model_dump()


def tools() -> object:
    messages = _user(WEATHER)
    asked = ASKED | {"tools": [WEATHER_TOOL]}
    answer = CLIENT.chat.completions.create(messages=messages, tool_choice="required", **asked)
    [call] = answer.choices[0].message.tool_calls
    messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": SUNNY}]
    last = CLIENT.chat.completions.create(messages=messages, tool_choice="none", **asked)
    made = called(call.function.name, json.loads(call.function.arguments))
    return {"calls": [made], "text": last.choices[0].message.content}


def streamed_tools() -> object:
    asked = ASKED | {"tools": [WEATHER_TOOL], "tool_choice": "required"}
    with CLIENT.chat.completions.stream(messages=_user(WEATHER), **asked) as stream:
        stream.until_done()
        [call] = stream.get_final_completion().choices[0].message.tool_calls or []
    return {"calls": [called(call.function.name, json.loads(call.function.arguments))]}


def responses() -> object:
    answer = CLIENT.responses.create(model=MODEL, input=CAPITAL, max_output_tokens=MAX_TOKENS, temperature=0)
    return answer.output_text


def image() -> object:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages: Any = [{"role": "user", "content": [part]}]
    return CLIENT.chat.completions.create(messages=messages, **ASKED)


CALLS = {
    "plain": plain,
    "streamed": streamed,
    "structured": structured,
    "tools": tools,
    "streamed tools": streamed_tools,
    "responses": responses,
    "image": image,
}
