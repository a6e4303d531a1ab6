"""LlamaIndex's OpenAILike."""

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from questions import CAPITAL, DESCRIBE, KEY, MAX_TOKENS, MODEL, SUNNY, URL, WEATHER, City, called

CHAT = OpenAILike(
    model=MODEL,
    api_base=URL,
    api_key=KEY,
    temperature=0,
    max_tokens=MAX_TOKENS,
    max_retries=0,
    context_window=4096,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
)


def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"{city}: {SUNNY}"


def plain() -> object:
    return CHAT.chat([ChatMessage(role="user", content=CAPITAL)]).message.content


def completion() -> object:
    return CHAT.model_copy(update={"is_chat_model": False}).complete("The capital of France is").text


def streamed() -> object:
    return [each.delta or "" for each in CHAT.stream_chat([ChatMessage(role="user", content=CAPITAL)])]


def structured() -> object:
    return CHAT.as_structured_llm(City).chat([ChatMessage(role="user", content=DESCRIBE)]).raw.model_dump()


def tools() -> object:
    tool = FunctionTool.from_defaults(weather)
    answer = CHAT.chat_with_tools([tool], user_msg=WEATHER, tool_required=True)
    calls = CHAT.get_tool_calls_from_response(answer)
    return {"calls": [called(each.tool_name, each.tool_kwargs) for each in calls]}


CALLS = {
    "plain": plain,
    "completion": completion,
    "streamed": streamed,
    "structured": structured,
    "tools": tools,
}
