"""curator, which asks for each row of a data set: one request a row, or all in a batch."""

import os
from functools import partial
from typing import Any

import litellm
from bespokelabs import curator
from questions import CAPITAL, DESCRIBE, KEY, MAX_TOKENS, MODEL, URL, City

# curator asks for schemas only of models that LiteLLM's catalogue says can do them.
litellm.register_model(
    {f"openai/{MODEL}": {"litellm_provider": "openai", "mode": "chat", "supports_response_schema": True}}
)
os.environ["OPENAI_API_KEY"] = KEY  # for the request by which it asks for its rate limits
os.environ["OPENAI_BASE_URL"] = URL
ONLINE: Any = {
    "backend": "litellm",
    "model_name": f"openai/{MODEL}",
    "backend_params": {
        "base_url": URL,
        "api_key": KEY,
        "max_retries": 0,
        "max_requests_per_minute": 1000,
        "max_tokens_per_minute": 1_000_000,
    },
}
BATCH: Any = {
    "backend": "openai",
    "model_name": MODEL,
    "batch": True,
    # It polls by the connections of an event loop that has ended: the first try of a poll fails.
    "backend_params": {"base_url": URL, "api_key": KEY, "max_retries": 2, "batch_check_interval": 1},
}


def _ask(how: dict[str, Any], text: str, **fields: Any) -> Any:  # noqa: ANN401  # rows of a data set
    model = curator.LLM(generation_params={"temperature": 0, "max_tokens": MAX_TOKENS}, **how, **fields)
    return model(text).dataset.to_list()


def _plain(how: dict[str, Any]) -> object:
    return _ask(how, CAPITAL)[0]["response"]


def _structured(how: dict[str, Any]) -> object:
    return _ask(how, DESCRIBE, response_format=City)[0]


CALLS = {
    "plain": partial(_plain, ONLINE),
    "structured": partial(_structured, ONLINE),
    "plain in batches": partial(_plain, BATCH),
    "structured in batches": partial(_structured, BATCH),
}
