"""The fields that change how tokens are picked: which are kept, refused, or need the answer in one piece."""

from typing import Any

import pytest

from jobs.errors import InvalidRequestError, UnsupportedParameterError
from jobs.prompts import openai
from jobs.prompts.abilities import ABILITIES, ALWAYS, SamplingFields, Takes
from jobs.prompts.openai import Generation
from jobs.states.batch import Endpoint

SET: dict[str, Any] = {
    "frequency_penalty": -0.5,
    "presence_penalty": 1.5,
    "repetition_penalty": 1.2,
    "min_p": 0.05,
    "logit_bias": {"50": -100, "7": 2.5},
    "bad_words": ["no", "never"],
    "stop_token_ids": [3, 0],
    "ignore_eos": True,
    "min_tokens": 4,
}
NEUTRAL: dict[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1,
    "min_p": 0,
    "logit_bias": {},
    "bad_words": [],
    "stop_token_ids": [],
    "ignore_eos": False,
    "min_tokens": 0,
}


def chat(takes: Takes | None = None, **fields: Any) -> Generation:  # noqa: ANN401  # of a request
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 8}
    return openai.validate_request(Endpoint.CHAT, body | fields, takes or {})


def test_every_field_is_here() -> None:
    assert SET.keys() == NEUTRAL.keys() == SamplingFields.model_fields.keys()
    assert SET.keys() <= ABILITIES


@pytest.mark.parametrize("name", list(SET))
def test_a_field_is_kept_if_it_changes_anything(name: str) -> None:
    assert chat(**{name: SET[name]}).sampling == {"temperature": 1, name: SET[name]}
    for nothing in (NEUTRAL[name], None):
        assert chat({"m": frozenset()}, **{name: nothing}).sampling == {"temperature": 1}


@pytest.mark.parametrize("name", list(SET))
def test_what_an_engine_does_not_take_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedParameterError, match=f"{name}.*'m'.*; its engines take .*top_k") as raised:
        chat({"m": (ABILITIES | ALWAYS) - {name}}, **SET)
    assert raised.value.param == name
    assert chat({"m": ABILITIES}, **SET).sampling == SET | {"temperature": 1}


@pytest.mark.parametrize("name", list(SET))
def test_what_is_about_earlier_tokens_needs_the_answer_in_one_piece(name: str) -> None:
    is_about_them = name.endswith("_penalty") or name == "bad_words"
    assert chat(**{name: SET[name]}).is_whole == is_about_them


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_p": 1.5}, "min_p"),
        ({"logit_bias": {"50": 101}}, "logit_bias"),
        ({"logit_bias": {"Paris": 1}}, "logit_bias"),
        ({"logit_bias": {str(n): 1 for n in range(1025)}}, "logit_bias"),
        ({"bad_words": [""]}, "bad_words.0"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        chat(**fields)
    assert raised.value.param == param
