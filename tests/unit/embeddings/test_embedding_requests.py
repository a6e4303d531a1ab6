"""Requests for embeddings: what is taken, what is refused and by which name, and their vectors."""

import math
from typing import Any

import pytest
import tokenizers
from pydantic import ValidationError
from tokenizers import models, pre_tokenizers, processors

from jobs.embeddings import vectors
from jobs.embeddings.requests import MAX_INPUTS, EmbeddingsRequest, name_of_input, validate
from jobs.errors import InvalidRequestError, UnsupportedParameterError
from jobs.ids import uuid7
from jobs.prompts import messages, openai
from jobs.prompts.abilities import ALWAYS, DIMENSIONS, EMBEDDINGS
from jobs.prompts.control_text import Frame
from jobs.prompts.counter import PromptCounter, count_short
from jobs.prompts.encoding import UnknownTokenError
from jobs.prompts.prefixes import NO_DIGESTS, family_of
from jobs.prompts.tokenizer import Tokenizer, unpack_ids
from jobs.states.batch import Endpoint

BODY: dict[str, Any] = {"model": "m", "input": "a"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load()


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_each_input_is_a_prompt_of_its_own(given: object, inputs: list[object]) -> None:
    _, asked = validate(BODY | {"input": given})
    assert [messages.embedded_input(each) for each in asked.inputs] == inputs
    assert asked.num_jobs == len(inputs)
    assert asked.is_whole


@pytest.mark.parametrize("given", [[0, *[""] * 100], [[0, *[""] * 100]]])
def test_many_wrong_ids_are_one_error(given: object) -> None:
    with pytest.raises(ValidationError) as caught:
        EmbeddingsRequest.model_validate(BODY | {"input": given})
    assert caught.value.error_count() == 1


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": []}, "input", "at least 1"),
        ({"input": ""}, "input", "not be empty"),
        ({"input": ["a", ""]}, "input.1", "not be empty"),
        ({"input": ["a", 1]}, "input.1", "string"),
        ({"input": [[]]}, "input.0", "at least 1"),
        ({"input": [-1]}, "input.0", "greater than or equal to 0"),
        ({"input": [True]}, "input.0", "integer"),
        ({"input": {"a": 1}}, "input", "string"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input", "not have more than 2048 inputs"),
        ({"input": "a\0"}, "input", "cannot be stored"),
        ({"encoding_format": "hex"}, "encoding_format", "'float' or 'base64'"),
        ({"dimensions": 0}, "dimensions", "greater than or equal to 1"),
        ({"temperature": 1}, "temperature", "no field"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as refused:
        validate(BODY | fields)
    assert refused.value.param == param


def test_a_field_that_is_null_or_of_the_caller_changes_nothing() -> None:
    request, asked = validate(BODY | {"encoding_format": None, "dimensions": None, "user": "u"})
    assert (request.encoding_format, asked.sampling) == ("float", {})


def test_a_model_whose_engines_do_not_embed_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedParameterError, match="'m' takes embeddings; its engines") as refused:
        validate(BODY, {"m": ALWAYS})
    assert refused.value.param == "model"
    with pytest.raises(UnsupportedParameterError, match="dimensions; its engines take embeddings") as refused:
        validate(BODY | {"dimensions": 8}, {"m": frozenset({EMBEDDINGS})})
    assert refused.value.param == "dimensions"
    validate(BODY | {"dimensions": 8}, {"m": frozenset({EMBEDDINGS, DIMENSIONS})})


def test_a_model_that_only_embeds_is_asked_for_no_text() -> None:
    body = {"model": "m", "prompt": "a"}
    with pytest.raises(UnsupportedParameterError, match="for text; its engines take embeddings"):
        openai.validate_request(Endpoint.TEXT, body, {"m": frozenset({EMBEDDINGS})})
    openai.validate_request(Endpoint.TEXT, body, {"m": ALWAYS | {EMBEDDINGS}})
    openai.validate_request(Endpoint.TEXT, body, {"m": frozenset()})


def test_the_field_of_an_input_is_its_place() -> None:
    assert name_of_input(validate(BODY)[0], 0) == "input"
    assert name_of_input(validate(BODY | {"input": ["a", "b"]})[0], 1) == "input.1"


def test_a_text_is_counted_between_the_tokens_of_its_tokenizer(tokenizer: Tokenizer) -> None:
    counter = PromptCounter(tokenizer)
    text = messages.canonical_input("The weather <|eot_id|>")
    counted = counter.count_prompt(text)
    ids = unpack_ids(counted.packed_ids).tolist()
    assert ids == [tokenizer.bos_id, *tokenizer.encode_text("The weather <|eot_id|>")]
    assert counted.prefixes == NO_DIGESTS, "no engine reuses any of it"
    assert counter.count_together([text]) == [counted]
    long = counter.count_prompt(messages.canonical_input("word " * 5000))
    assert family_of(long.prefixes, long.num_tokens, uuid7()) is None


def test_token_ids_are_taken_as_they_are(tokenizer: Tokenizer) -> None:
    counter = PromptCounter(tokenizer)
    given = messages.canonical_input([5, 6, 7])
    assert unpack_ids(counter.count_prompt(given).packed_ids).tolist() == [5, 6, 7]
    assert count_short(given, counter, max_chars=3) is None
    with pytest.raises(UnknownTokenError, match="10000000 is not in the model's vocabulary"):
        counter.count_prompt(messages.canonical_input([5, 10_000_000]))


def test_the_tokens_around_a_text_are_those_of_the_tokenizer_s_template() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"[CLS]": 0, "[SEP]": 1, "a": 2}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    assert Frame.of(backend, {}, bos_id=None, eos_id=1) == Frame()
    assert Frame.of(backend, {"add_eos_token": True}, bos_id=None, eos_id=1) == Frame(after=(1,))
    assert Frame.of(backend, {"add_bos_token": True}, bos_id=0, eos_id=1) == Frame(before=(0,))
    backend.post_processor = processors.TemplateProcessing(
        "[CLS] $0 [SEP]", None, [("[CLS]", 0), ("[SEP]", 1)]
    )
    assert Frame.of(backend, {}, bos_id=None, eos_id=1) == Frame((0,), (1,))
    assert Frame.of(backend, {"add_bos_token": False}, bos_id=0, eos_id=1) == Frame((), (1,))


def test_a_vector_is_cut_to_length_1() -> None:
    packed = vectors.pack([3.0, 4.0, 12.0])
    assert vectors.unpack(vectors.cut(packed, 2)) == pytest.approx([0.6, 0.8])
    assert vectors.unpack(vectors.cut(vectors.pack([0.0, 1.0]), 1)) == [0.0]


@pytest.mark.parametrize("wrong", [[], [math.nan], [math.inf], [[1.0]]])
def test_a_vector_is_a_list_of_finite_numbers(wrong: Any) -> None:  # noqa: ANN401  # that is the test
    with pytest.raises(ValueError, match="finite numbers"):
        vectors.pack(wrong)


def test_a_vector_in_base64_is_whole_numbers() -> None:
    assert vectors.unpack(vectors.pack_base64("AAAAPwAAgL4AAEA/")) == [0.5, -0.25, 0.75]
    for wrong in ("", "AAAA", "?"):
        with pytest.raises(ValueError, match=r"numbers|buffer|base64"):
            vectors.pack_base64(wrong)
