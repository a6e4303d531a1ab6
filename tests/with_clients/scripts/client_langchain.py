"""LangChain's ChatOpenAI."""

import functools
import operator

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from questions import CAPITAL, DESCRIBE, KEY, MAX_TOKENS, MODEL, SUNNY, URL, WEATHER, City, called

CHAT = ChatOpenAI(
    model=MODEL, base_url=URL, api_key=SecretStr(KEY), temperature=0, max_tokens=MAX_TOKENS, max_retries=0
)


@tool
def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"{city}: {SUNNY}"


def plain() -> object:
    return CHAT.invoke(CAPITAL).text


def streamed() -> object:
    return [each.text for each in CHAT.stream(CAPITAL)]


def structured() -> object:
    found = CHAT.with_structured_output(City).invoke(DESCRIBE)
    return isinstance(found, City) and found.model_dump()


def tools() -> object:
    question = HumanMessage(WEATHER)
    asked = CHAT.bind_tools([weather], tool_choice="any").invoke([question])
    [call] = asked.tool_calls
    said = ToolMessage(SUNNY, tool_call_id=call["id"])
    last = CHAT.bind_tools([weather]).invoke([question, asked, said])
    return {"calls": [called(call["name"], call["args"])], "text": last.text}


def streamed_tools() -> object:
    chunks = CHAT.bind_tools([weather], tool_choice="any").stream(WEATHER)
    whole = functools.reduce(operator.add, chunks)
    return {"calls": [called(each["name"], each["args"]) for each in whole.tool_calls]}


def responses() -> object:
    return CHAT.model_copy(update={"use_responses_api": True}).invoke(CAPITAL).text


CALLS = {
    "plain": plain,
    "streamed": streamed,
    "structured": structured,
    "tools": tools,
    "streamed tools": streamed_tools,
    "responses": responses,
}
