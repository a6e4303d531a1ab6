"""instructor, in its default mode, which is tools, and by OpenAI's schemas."""

import instructor
from openai import OpenAI
from questions import CAPITAL, DESCRIBE, KEY, MAX_TOKENS, MODEL, URL, City, called

CLIENT = OpenAI(base_url=URL, api_key=KEY, max_retries=0)
ASKED = {"model": MODEL, "max_tokens": MAX_TOKENS, "temperature": 0, "max_retries": 0}


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def plain() -> object:
    client = instructor.from_openai(CLIENT, mode=instructor.Mode.JSON_SCHEMA)
    return client.create(response_model=None, messages=_user(CAPITAL), **ASKED).choices[0].message.content


def streamed() -> object:
    client = instructor.from_openai(CLIENT, mode=instructor.Mode.JSON_SCHEMA)
    partial = client.create_partial(response_model=City, messages=_user(DESCRIBE), **ASKED)
    return [each.model_dump_json() for each in partial]


def structured() -> object:
    client = instructor.from_openai(CLIENT, mode=instructor.Mode.JSON_SCHEMA)
    return client.create(response_model=City, messages=_user(DESCRIBE), **ASKED).model_dump()


def tools() -> object:
    found = instructor.from_openai(CLIENT).create(response_model=City, messages=_user(DESCRIBE), **ASKED)
    return {"calls": [called("City", found.model_dump())]}


CALLS = {"plain": plain, "streamed": streamed, "structured": structured, "tools": tools}
