"""DSPy: the model itself, its JSON adapter with and without a stream, native calls by both adapters."""

import asyncio
from typing import Any, Literal

import dspy
import litellm
from questions import CAPITAL, DESCRIBE, KEY, MAX_TOKENS, MODEL, SUNNY, URL, WEATHER, called

# DSPy asks for schemas and calls only of models that LiteLLM's catalogue says can do them.
litellm.register_model(
    {
        f"openai/{MODEL}": {
            "litellm_provider": "openai",
            "mode": "chat",
            "supports_function_calling": True,
            "supports_response_schema": True,
        }
    }
)
LM = dspy.LM(
    f"openai/{MODEL}",
    api_base=URL,
    api_key=KEY,
    temperature=0,
    max_tokens=MAX_TOKENS,
    cache=False,
    num_retries=0,
    engine="litellm",
)


class Answer(dspy.Signature):
    """Answer in a few words."""

    question: str = dspy.InputField()
    answer: Literal["Paris", "Oslo"] = dspy.OutputField()


class Describe(dspy.Signature):
    """Describe the city."""

    question: str = dspy.InputField()
    name: Literal["Oslo", "Bergen"] = dspy.OutputField()
    size: Literal["small", "large"] = dspy.OutputField()
    founded: Literal[1000, 1048, 1624] = dspy.OutputField()


class Act(dspy.Signature):
    """Call a tool to answer."""

    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    outputs: dspy.ToolCalls = dspy.OutputField()


def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"{city}: {SUNNY}"


def plain() -> object:
    return LM(CAPITAL)[0]


def streamed() -> object:
    """Pass on the pieces of a signature's answer as they come from LiteLLM."""

    async def pieces() -> list[str]:
        asking: Any = dspy.streamify(dspy.Predict(Answer))
        with dspy.context(lm=LM, adapter=dspy.JSONAdapter()):
            return [
                each.choices[0].delta.content or ""
                async for each in asking(question=CAPITAL)
                if isinstance(each, litellm.ModelResponseStream)
            ]

    return asyncio.run(pieces())


def structured() -> object:
    with dspy.context(lm=LM, adapter=dspy.JSONAdapter()):
        found = dspy.Predict(Describe)(question=DESCRIBE)
    return {"name": found.name, "size": found.size, "founded": found.founded}


def tools() -> object:
    return _tools(dspy.ChatAdapter(use_native_function_calling=True), tool_choice="required")


def tools_by_json() -> object:
    """Demand a call, beside which the adapter asks for a schema of the text."""
    return _tools(dspy.JSONAdapter(use_native_function_calling=True), tool_choice="required")


def tools_or_schema() -> object:
    """Leave it to the model whether it calls or answers by the schema."""
    return _tools(dspy.JSONAdapter(use_native_function_calling=True))


def _tools(adapter: dspy.Adapter, **options: object) -> object:
    with dspy.context(lm=LM.copy(**options), adapter=adapter):
        found = dspy.Predict(Act)(question=WEATHER, tools=[dspy.Tool(weather)])
    return {"calls": [called(each.name, each.args) for each in found.outputs.tool_calls]}


CALLS = {
    "plain": plain,
    "streamed": streamed,
    "structured": structured,
    "tools": tools,
    "tools by JSON": tools_by_json,
    "tools or schema": tools_or_schema,
}
