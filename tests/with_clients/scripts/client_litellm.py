"""LiteLLM's functions, with the provider `openai`."""

import json

import litellm
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

WHERE = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": KEY, "num_retries": 0, "max_retries": 0}
ASKED = WHERE | {"temperature": 0, "max_tokens": MAX_TOKENS}


def _user(text: str) -> list[object]:
    return [{"role": "user", "content": text}]


def plain() -> object:
    return litellm.completion(messages=_user(CAPITAL), **ASKED).choices[0].message.content


def streamed() -> object:
    stream = litellm.completion(messages=_user(CAPITAL), stream=True, **ASKED)
    return [each.choices[0].delta.content or "" for each in stream]


def structured() -> object:
    answer = litellm.completion(messages=_user(DESCRIBE), response_format=City, **ASKED)
    return City.model_validate_json(answer.choices[0].message.content).model_dump()


def tools() -> object:
    messages, tools = _user(WEATHER), [WEATHER_TOOL]
    answer = litellm.completion(messages=messages, tools=tools, tool_choice="required", **ASKED)
    [call] = answer.choices[0].message.tool_calls
    messages += [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": SUNNY}]
    last = litellm.completion(messages=messages, tools=tools, **ASKED)
    made = called(call.function.name, json.loads(call.function.arguments))
    return {"calls": [made], "text": last.choices[0].message.content}


def responses() -> object:
    answer = litellm.responses(input=CAPITAL, max_output_tokens=MAX_TOKENS, temperature=0, **WHERE)
    return "".join(part.text for item in answer.output if item.type == "message" for part in item.content)


def wrong_key() -> object:
    return litellm.completion(messages=_user(CAPITAL), **(ASKED | {"api_key": "lb_wrong"}))


def wrong_model() -> object:
    return litellm.completion(messages=_user(CAPITAL), **(ASKED | {"model": "openai/another"}))


def too_long() -> object:
    return litellm.completion(messages=_user(CAPITAL * 3000), **ASKED)


CALLS = {
    "plain": plain,
    "streamed": streamed,
    "structured": structured,
    "tools": tools,
    "responses": responses,
    "wrong key": wrong_key,
    "wrong model": wrong_model,
    "too long": too_long,
}
