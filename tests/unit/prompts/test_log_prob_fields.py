"""What requests may ask of log probabilities: kept with the job, bounded, refused by name."""

from typing import Any

import pytest

from jobs.answers.log_probs import MAX_SCORES
from jobs.errors import InvalidRequestError, UnsupportedParameterError
from jobs.prompts import openai
from jobs.prompts.abilities import ABILITIES, Takes
from jobs.prompts.openai import Generation
from jobs.states.batch import Endpoint

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
TEXT = {"model": "m", "prompt": "x"}


def chat(takes: Takes | None = None, **fields: Any) -> Generation:  # noqa: ANN401  # of a request
    return openai.validate_request(Endpoint.CHAT, CHAT | fields, takes or {})


def text(takes: Takes | None = None, **fields: Any) -> Generation:  # noqa: ANN401  # of a request
    return openai.validate_request(Endpoint.TEXT, TEXT | fields, takes or {})


def test_they_are_kept_with_the_job() -> None:
    assert chat(logprobs=True).sampling["logprobs"] == 0
    assert chat(logprobs=True, top_logprobs=20).sampling["logprobs"] == 20
    assert text(logprobs=0).sampling["logprobs"] == 0
    assert text(logprobs=5).sampling["logprobs"] == 5


@pytest.mark.parametrize("fields", [{"logprobs": False}, {"logprobs": None}, {"top_logprobs": 0}])
def test_what_asks_for_none_is_accepted_everywhere(fields: dict[str, Any]) -> None:
    nothing: Takes = {"m": frozenset()}
    assert "logprobs" not in chat(nothing, **fields).sampling
    assert "logprobs" not in text(nothing, **fields).sampling


def test_what_an_engine_does_not_tell_is_refused_by_name() -> None:
    for ask, names in ((chat, {"logprobs": True}), (text, {"logprobs": 0})):
        with pytest.raises(
            UnsupportedParameterError, match=r"^logprobs: .*'m'.*; its engines take "
        ) as raised:
            ask({"m": ABILITIES - {"logprobs"}}, **names)
        assert raised.value.param == "logprobs"
    own_alone: Takes = {"m": ABILITIES - {"top_logprobs"}}
    assert chat(own_alone, logprobs=True).sampling["logprobs"] == 0
    assert text(own_alone, logprobs=0).sampling["logprobs"] == 0
    with pytest.raises(UnsupportedParameterError) as raised:
        chat(own_alone, logprobs=True, top_logprobs=1)
    assert raised.value.param == "top_logprobs"
    with pytest.raises(UnsupportedParameterError, match="takes top_logprobs") as raised:
        text(own_alone, logprobs=1)
    assert raised.value.param == "logprobs"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "max_tokens": MAX_SCORES + 1}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 1, "max_tokens": MAX_SCORES // 2 + 1}, "top_logprobs"),
    ],
)
def test_a_wrong_chat_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        chat(**fields)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 1, "top_logprobs": 1}, "top_logprobs"),
        ({"logprobs": 20, "max_tokens": MAX_SCORES // 21 + 1}, "logprobs"),
    ],
)
def test_a_wrong_text_completion_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        text(**fields)
    assert raised.value.param == param


def test_a_request_without_a_limit_gets_one_within_which_all_are_kept() -> None:
    assert chat(logprobs=True, top_logprobs=20).tokens_within(100_000) == MAX_SCORES // 21
    assert chat(logprobs=True).tokens_within(4096) == 4096
    assert chat(logprobs=True, top_logprobs=20, max_tokens=7).tokens_within(4096) == 7
    assert chat().tokens_within(1_000_000) == 1_000_000
