"""smolagents: its model class, and an agent whose every step is the call of a tool."""

from questions import CAPITAL, DESCRIBE, KEY, MAX_TOKENS, MODEL, URL, WEATHER, City, called
from smolagents import ChatMessage, OpenAIModel, Tool

CHAT = OpenAIModel(
    model_id=MODEL,
    api_base=URL,
    api_key=KEY,
    client_kwargs={"max_retries": 0},
    temperature=0,
    max_tokens=MAX_TOKENS,
)


class Weather(Tool):
    """Tells the weather."""

    name = "weather"
    description = "Tell the weather in a city."
    inputs = {"city": {"type": "string", "description": "The city."}}  # noqa: RUF012  # the library's own form
    output_type = "string"

    def forward(self, city: str) -> str:
        return city


def _user(text: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=[{"type": "text", "text": text}])]


def plain() -> object:
    return CHAT.generate(_user(CAPITAL)).content


def streamed() -> object:
    return [each.content or "" for each in CHAT.generate_stream(_user(CAPITAL))]


def structured() -> object:
    options = {"name": "city", "strict": True, "schema": City.model_json_schema()}
    asked = {"type": "json_schema", "json_schema": options}
    return City.model_validate_json(
        CHAT.generate(_user(DESCRIBE), response_format=asked).content
    ).model_dump()


def tools() -> object:
    answer = CHAT.generate(_user(WEATHER), tools_to_call_from=[Weather()])
    calls = [CHAT.parse_tool_calls(answer)] if not answer.tool_calls else [answer]
    return {
        "calls": [
            called(call.function.name, call.function.arguments) for each in calls for call in each.tool_calls
        ]
    }


CALLS = {"plain": plain, "streamed": streamed, "structured": structured, "tools": tools}
