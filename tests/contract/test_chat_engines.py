"""Engines that take messages, with estimated token counts: an endpoint such as Ollama's, and llama.cpp."""

import os
from collections.abc import Iterator

import numpy as np
import pytest

from cli.stack.engine_urls import EngineUrls
from cli.stack.errors import StackError
from cli.stack.found_engines import FoundEngine, find_engines
from entry_points import Asked, ask
from jobs.errors import EngineError
from jobs.prompts.messages import Message
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import ESTIMATE
from jobs.settings import EngineSettings, EngineSide, TritonSettings
from jobs.states import FinishReason
from llama_support import LlamaServer, running_llama
from stand_in_engine import StandIn, standing_in
from worker.engine.client import EngineClient
from worker.engine.deltas import TextDelta
from worker.engine.http.call import HttpEnd
from worker.engine.http.chat import Chat
from worker.engine.probe import inspect
from worker.engine.request import Request
from worker.inference.outcome import Failed, Finished

_OLLAMA = "llama3.2:3b"


@pytest.fixture(scope="module")
def estimating() -> Tokenizer:
    return Tokenizer.load(ESTIMATE)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with running_llama(tmp_path_factory.mktemp("llama"), context=1024) as server:
        yield server


def settings_of(url: str, **overrides: object) -> EngineSettings:
    whole = {"kind": "openai-chat", "max_batch_size": 2, "max_blocks": 64, "tokens_per_block": 32}
    return EngineSettings.model_validate(whole | {"url": url} | overrides)


def asked(settings: EngineSettings, tokenizer: Tokenizer, *messages: Message, max_tokens: int = 5) -> Asked:
    client = EngineClient(TritonSettings(), settings, end_id=tokenizer.end_id)
    try:
        served = client.served()
    finally:
        client.close()
    return ask(served, tokenizer, tokenizer.encode_messages(messages), max_tokens=max_tokens)


def found(server: StandIn, *, slots: int = 2, kv_tokens: int = 8192) -> FoundEngine:
    options = EngineUrls(urls=(server.url,), slots=slots, kv_tokens=kv_tokens)
    (engine,) = find_engines(options, os.environ)
    return engine


def test_up_estimates_where_no_tokenizer_is_found_and_says_so() -> None:
    with standing_in("openai", models=(_OLLAMA,)) as server:
        engine = found(server)
    assert engine.words() == (
        f"{server.url}: openai-chat serves {_OLLAMA}; context 4,096 tokens, 2 slots, KV cache 8,192 tokens;"
        " token counts are estimates, at or above the model's own (its tokenizer is not on this machine:"
        " --engine-tokenizer DIR)"
    )
    assert engine.settings["LONGBATCH_ENGINE__KIND"] == "openai-chat"
    assert engine.settings["LONGBATCH_TOKENIZER__PATH"] == ESTIMATE
    assert engine.settings["LONGBATCH_ENGINE__MAX_SEQ_LEN"] == "4096", "its share: Ollama cuts silently"
    assert engine.settings["LONGBATCH_ENGINE__MAX_INPUT_LEN"] == "4095"
    assert engine.check.status == "warning"


def test_an_estimate_may_be_chosen_for_engines_that_take_messages() -> None:
    with standing_in("openai") as plain, standing_in("vllm") as vllm:
        chosen, refused = (
            EngineUrls(urls=(each.url,), slots=2, kv_tokens=8192, tokenizer=ESTIMATE)
            for each in (plain, vllm)
        )
        (engine,) = find_engines(chosen, os.environ)
        with pytest.raises(StackError, match="takes token ids, which no estimate gives"):
            find_engines(refused, os.environ)
    assert engine.engine.kind == "openai-chat"


def test_the_kind_may_be_set_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGBATCH_ENGINE__KIND", "openai")
    with standing_in("vllm", models=(_OLLAMA,)) as server:
        assert found(server).engine.kind == "openai-chat"


def test_messages_go_as_they_were_written_and_the_engine_counts_its_answer(estimating: Tokenizer) -> None:
    messages = [Message("system", "Be <|eot_id|> brief."), Message("user", "Name\n\nrivers.")]
    with standing_in("openai") as server:
        run = asked(settings_of(server.url), estimating, *messages)
        assert run.follow() == Finished(FinishReason.LENGTH)
        assert run.answer.output().text == "a b c d e "
        assert run.answer.num_tokens == 5
        run.close()
        (path, body) = server.bodies[-1]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": each.role, "content": each.content} for each in messages]


@pytest.mark.parametrize(
    ("reason", "retryable"), [("repetition", None), ("content_filter", False), ("error", True)]
)
def test_each_finish_reason_of_a_chat_ends_the_job_or_the_attempt(
    reason: str, *, retryable: bool | None
) -> None:
    request = Request(
        request_id="a", ids=np.array([], dtype=np.int32), max_tokens=9, end_id=-1, pad_id=0, text="a"
    )
    choice = {"index": 0, "delta": {"content": "b"}, "finish_reason": reason}
    delta, end = Chat("served", request).read({"choices": [choice]})
    assert isinstance(end, HttpEnd)
    assert (end.error and end.error.retryable) == retryable
    is_stop = isinstance(delta, TextDelta) and delta.reason is FinishReason.STOP
    assert is_stop == (retryable is None)


def test_a_refused_length_names_the_tokenizers_flag(estimating: Tokenizer) -> None:
    with standing_in("openai", longest=7) as server:
        run = asked(settings_of(server.url), estimating, Message("user", "Too long"))
        outcome = run.follow()
        run.close()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, EngineError)
    assert outcome.error.message.startswith(
        "This model's maximum context length is 7 tokens. The engine counts more tokens than estimated: name"
        " the model's tokenizer with --engine-tokenizer DIR"
    )
    assert not outcome.error.retryable


def test_an_answer_of_thoughts_alone_is_no_empty_answer(estimating: Tokenizer) -> None:
    with standing_in("openai", only_thinks=True) as server:
        run = asked(settings_of(server.url), estimating, Message("user", "Think"))
        outcome = run.follow()
        run.close()
    assert isinstance(outcome, Failed)
    assert "the model only thought" in str(outcome.error)


@pytest.mark.parametrize(("path", "kind"), [(ESTIMATE, "openai"), (None, "openai-chat")])
def test_an_estimating_tokenizer_and_the_kind_need_each_other(path: str | None, kind: str) -> None:
    with standing_in("openai") as server:
        side = EngineSide(engine=settings_of(server.url, kind=kind))
        told = {each.name: each for each in inspect(side, Tokenizer.load(path))}
    assert told["tokenizer"].status == "failed"
    assert "need each other" in told["tokenizer"].detail


def test_real_llama_cpp_answers_messages_and_counts_no_more_than_estimated(
    llama: LlamaServer, estimating: Tokenizer
) -> None:
    settings = settings_of(llama.url)
    run = asked(settings, estimating, Message("user", "Name the capital of France."), max_tokens=12)
    assert isinstance(run.follow(), Finished)
    assert "Paris" in run.answer.output().text
    run.close()
    told = {each.name: each for each in inspect(EngineSide(engine=settings), estimating)}
    assert told["answer"].status == "ok"
    assert told["tokenizer"].status == "warning"


def test_real_llama_cpp_refuses_a_longer_prompt_by_name(llama: LlamaServer, estimating: Tokenizer) -> None:
    run = asked(settings_of(llama.url), estimating, Message("user", "word " * 3000))
    outcome = run.follow()
    run.close()
    assert isinstance(outcome, Failed)
    assert "--engine-tokenizer DIR" in str(outcome.error)
