"""What an engine promises a worker, on real llama.cpp with a small real model, one thread and one request.

Its answers are not known beforehand: they are compared with what the server itself says when it is asked for
the whole answer at once, which is the same while one request runs alone.
"""

import asyncio
import os
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pydantic import SecretStr

from entry_points import NEVER, Asked, ask
from gguf_support import smollm2
from jobs.errors import EngineError, EngineLostError, EngineUnavailableError
from jobs.prompts.gguf_tokenizer import ensure_gguf_tokenizer
from jobs.prompts.messages import Message
from jobs.prompts.tokenizer import TokenIds, Tokenizer
from jobs.settings import EngineSettings, EngineSide, TritonSettings
from jobs.states import FinishReason
from llama_support import LlamaServer, running_llama
from support import PATIENCE, eventually
from worker.engine.client import EngineClient
from worker.engine.deltas import CachedPrompt, EngineDelta, TokenDelta
from worker.engine.engine import StreamEnd
from worker.engine.probe import inspect as inspect_engine
from worker.engine.request import Request, Sampling
from worker.engine.stream import Stream
from worker.inference.answer import Answer
from worker.inference.outcome import Finished

CONTEXT = 8192 if os.environ.get("LONGBATCH_PROVE") else 2048
LONG = 5000 if os.environ.get("LONGBATCH_PROVE") else 200
GERMAN = "Wie schön: Äpfel, Öl, Übermut, größer, weiß, für, über, Äpfel, Öl, Übermut, größer, weiß, für, Öl,"
SQUIDS = "🦑🦑🦑🦑🦑"  # three tokens each


@dataclass
class Llama:
    """llama.cpp as a worker sees it."""

    server: LlamaServer
    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        self.client = EngineClient(TritonSettings(), self.server.settings(), end_id=self.tokenizer.end_id)
        self.model = self.client.served()
        self.ask = partial(ask, self.model, self.tokenizer, is_endless=True)

    def ids(self, text: str) -> TokenIds:
        return self.tokenizer.encode_text(text)

    def cached(self, ids: TokenIds) -> TokenIds:
        """A prompt that the server has read already, so that every answer to it is rounded alike."""
        self.server.whole(ids.tolist(), 1)
        return ids


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(str(ensure_gguf_tokenizer(smollm2(), tmp_path_factory.mktemp("smollm2"))))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with running_llama(tmp_path_factory.mktemp("llama"), context=CONTEXT) as server:
        yield server


@pytest.fixture
def llama(running: LlamaServer, tokenizer: Tokenizer) -> Iterator[Llama]:
    """Nothing runs on it when a test begins."""
    eventually(running.is_idle)
    found = Llama(running, tokenizer)
    yield found
    found.client.close()


def ids_of(run: Asked) -> list[int]:
    assert isinstance(run.answer, Answer)
    return list(run.answer.ids)


def test_the_server_is_found_by_its_own_word_with_its_slots_and_context(llama: Llama) -> None:
    assert llama.model.kind == "llama.cpp"
    assert llama.model.abilities.can_resume
    model = llama.client.describe()
    assert (model.capacity.max_batch_size, model.capacity.max_seq_len) == (1, CONTEXT)
    assert model.capacity.max_blocks == CONTEXT // 32
    assert llama.client.answers(model.served, timeout=60)
    found = {
        each.name: each.status
        for each in inspect_engine(
            EngineSide(engine=llama.server.settings(max_seq_len=CONTEXT, max_input_len=1000)), llama.tokenizer
        )
    }
    assert set(found.values()) == {"ok"}
    assert {"server", "entry point", "answer", "capacity", "metrics", "tokenizer"} <= set(found)


def test_a_short_prompt_is_answered_to_its_end_token(llama: Llama) -> None:
    ids = llama.cached(llama.tokenizer.encode_messages([Message("user", "Reply with the one word: yes")]))
    run = llama.ask(ids, max_tokens=200, is_endless=False)
    assert run.follow() == Finished(FinishReason.STOP)
    assert run.engine_is_done
    said = llama.server.whole(ids.tolist(), 200)
    assert said[-1] in llama.tokenizer.eos_ids
    assert ids_of(run) == said[:-1]
    assert run.answer.output().text == llama.tokenizer.decode(said[:-1])
    run.close()


def test_a_long_answer_is_as_long_as_was_asked(llama: Llama) -> None:
    run = llama.ask(llama.ids("Once upon a time"), max_tokens=LONG)
    assert run.follow() == Finished(FinishReason.LENGTH)
    assert run.engine_is_done
    assert run.answer.num_tokens == LONG
    run.close()


@pytest.mark.parametrize("limit", [1, 3, 7, 40])
def test_characters_of_several_tokens_lose_none_of_them(llama: Llama, limit: int) -> None:
    """The server's stream leaves out all but a character's last token."""
    ids = llama.cached(llama.ids(GERMAN))
    run = llama.ask(ids, max_tokens=limit)
    assert run.follow() == Finished(FinishReason.LENGTH)
    assert run.engine_is_done
    assert ids_of(run) == llama.server.whole(ids.tolist(), limit, ignore_eos=True)
    assert run.answer.output().num_tokens == limit
    run.close()


@pytest.mark.parametrize("limit", [8, 12])
def test_ids_that_the_text_does_not_tell_are_generated_again(llama: Llama, limit: int) -> None:
    """Here every missing one is: no vocabulary is known."""
    ids = llama.cached(llama.ids(SQUIDS))
    request = Request("again", ids, limit, NEVER, llama.tokenizer.pad_id)
    came: queue.SimpleQueue[EngineDelta | StreamEnd] = queue.SimpleQueue()
    stream = Stream(llama.model.call(request), put=came.put)
    stream.start()
    found: list[int] = []
    while not isinstance(event := came.get(timeout=PATIENCE), StreamEnd):
        found += event.ids if isinstance(event, TokenDelta) else []
    assert event == StreamEnd(None, confirmed=True)
    assert found == llama.server.whole(ids.tolist(), limit, ignore_eos=True)
    assert stream.close()


@pytest.mark.parametrize("num_words", [3, 300])
def test_the_server_says_what_it_had_of_a_prompt_before_it_answers(llama: Llama, num_words: int) -> None:
    ids = llama.cached(llama.ids("What it had read. " * num_words))
    run = llama.ask(ids, max_tokens=2)
    run.first()
    told = asyncio.run(run.running.inbox.get(timeout=PATIENCE))
    assert told == CachedPrompt(len(ids) - 1), "at least one token is computed"
    assert run.follow() == Finished(FinishReason.LENGTH)
    run.close()


def test_a_seeded_answer_is_the_server_s_own(llama: Llama) -> None:
    ids = llama.cached(llama.ids("The weather"))
    run = llama.ask(ids, max_tokens=24, sampling=Sampling(temperature=1.5, seed=7))
    assert run.follow() == Finished(FinishReason.LENGTH)
    picked = {"temperature": 1.5, "seed": 7, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True}
    assert ids_of(run) == llama.server.whole(ids.tolist(), 24, **picked)
    run.close()


def test_a_stop_string_ends_the_answer_before_it(llama: Llama) -> None:
    run = llama.ask(llama.ids(GERMAN), max_tokens=200, stops=["größer"])
    assert run.follow() == Finished(FinishReason.STOP)
    output = run.answer.output()
    assert output.text == " Übermut, "
    run.stream.stop()
    run.close()
    eventually(llama.server.is_idle)


def test_a_request_cancelled_while_it_decodes_leaves_its_slot(llama: Llama) -> None:
    run = llama.ask(llama.ids("Once upon a time"), max_tokens=1500)
    run.first()
    run.stream.stop()
    assert not run.end().confirmed
    eventually(llama.server.is_idle)  # by itself it would take longer
    assert run.answer.num_tokens < 1500
    run.close()


def test_a_request_cancelled_in_its_prefill_leaves_its_slot_before_the_prompt_is_read(llama: Llama) -> None:
    ids = np.concatenate([llama.ids("Numbers follow:"), np.arange(1000, 2400, dtype=np.int32)])
    run = llama.ask(ids, max_tokens=500)
    eventually(lambda: not llama.server.is_idle())
    run.stream.cancel()
    assert not run.end().confirmed
    eventually(llama.server.is_idle)
    (slot,) = llama.server.slot_states()
    assert slot["n_prompt_tokens_processed"] < len(ids)
    run.close()


def test_a_stream_that_is_cut_leaves_its_slot(llama: Llama) -> None:
    run = llama.ask(llama.ids("Once upon a time"), max_tokens=1500)
    run.first()
    run.close()
    assert not run.end().confirmed
    eventually(llama.server.is_idle)


def test_a_wrong_request_fails_for_good(llama: Llama) -> None:
    run = llama.ask(np.array([10**8], dtype=np.int32), max_tokens=3)
    error = run.error()
    assert type(error) is EngineError
    assert "invalid tokens" in error.message
    assert run.engine_is_done
    run.close()


def test_a_prompt_that_is_too_long_is_refused_for_good(llama: Llama) -> None:
    run = llama.ask(np.full(CONTEXT + 1, 504, dtype=np.int32), max_tokens=3)
    assert type(run.error()) is EngineError
    assert run.engine_is_done
    run.close()


def test_an_answer_that_the_context_cuts_is_no_success(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with running_llama(tmp_path, context=256) as server:
        llama = Llama(server, tokenizer)
        run = llama.ask(llama.ids("Once upon a time"), max_tokens=260)
        error = run.error()
        assert type(error) is EngineError
        assert "LONGBATCH_ENGINE__MAX_SEQ_LEN" in error.message
        run.close()
        llama.client.close()


def test_a_server_that_dies_is_lost_and_another_goes_on_where_it_was(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with running_llama(tmp_path) as server:
        llama = Llama(server, tokenizer)
        ids = llama.ids("Once upon a time")
        run = llama.ask(ids, max_tokens=1000)
        eventually(lambda: run.running.inbox.qsize() > 10)
        server.kill()
        assert isinstance(run.error(), EngineLostError)
        assert not run.engine_is_done
        run.close()
        assert not llama.client.is_ready()
        begun = ids_of(run)
        server.start()
        assert llama.client.is_ready()
        whole = server.whole(ids.tolist(), len(begun) + 20, ignore_eos=True)
        rest = llama.ask(np.concatenate([ids, np.array(begun, dtype=np.int32)]), max_tokens=20)
        assert rest.follow() == Finished(FinishReason.LENGTH)
        assert begun + ids_of(rest) == whole
        rest.close()
        llama.client.close()


def test_a_wrong_key_is_a_server_to_try_again_later(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def client(settings: EngineSettings) -> EngineClient:
        return EngineClient(TritonSettings(), settings, end_id=tokenizer.end_id)

    with running_llama(tmp_path, api_key="right") as server:
        wrong = client(server.settings(api_key=SecretStr("wrong")))
        with pytest.raises(EngineUnavailableError) as caught:
            wrong.describe()
        assert "API" in caught.value.said
        wrong.close()
        right = client(server.settings(api_key=SecretStr("right")))
        assert right.answers(right.describe().served, timeout=60)
        right.close()
