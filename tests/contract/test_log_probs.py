"""Log probabilities as engines tell them: stand-ins of servers that do not run here, and real llama.cpp."""

from collections.abc import Iterator
from typing import Any

import httpx2
import numpy as np
import pytest

from entry_points import Asked, ask
from gguf_support import smollm2
from jobs.answers import log_probs
from jobs.answers.log_probs import LEAST, LogProbs
from jobs.errors import EngineUnableError, RetryableEngineError
from jobs.prompts.gguf_tokenizer import ensure_gguf_tokenizer
from jobs.prompts.guides import Guide, GuideKind
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSettings, TritonSettings
from jobs.states import FinishReason
from llama_support import LlamaServer, running_llama
from stand_in_engine import Kind, StandIn, log_prob_of, standing_in
from support import eventually
from worker.engine.client import EngineClient
from worker.engine.request import Sampling
from worker.inference.outcome import Finished

WHOLE = {"max_batch_size": 4, "max_blocks": 64, "tokens_per_block": 32}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(str(ensure_gguf_tokenizer(smollm2(), tmp_path_factory.mktemp("smollm2"))))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with running_llama(tmp_path_factory.mktemp("llama")) as server:
        yield server


def asked(
    server: StandIn | LlamaServer,
    tokenizer: Tokenizer,
    text: str = "The weather",
    **options: Any,  # noqa: ANN401  # of `ask`
) -> Asked:
    if isinstance(server, StandIn):
        kind = {"kind": "openai"} if server.kind == "openai" else {}
        settings = EngineSettings.model_validate({"url": server.url} | WHOLE | kind)
    else:
        eventually(server.is_idle)
        settings = server.settings()
    client = EngineClient(TritonSettings(), settings, end_id=tokenizer.end_id)
    try:
        served = client.served()
    finally:
        client.close()
    ids = options.pop("ids", tokenizer.encode_text(text))
    return ask(served, tokenizer, ids, max_tokens=options.pop("max_tokens", 5), **options)


def scored_of(run: Asked) -> LogProbs:
    """What the run's answer keeps, once it has ended."""
    packed = run.answer.output().log_probs
    assert packed is not None
    return log_probs.read(packed)


@pytest.mark.parametrize(("kind", "repeats"), [("vllm", True), ("sglang", True), ("sglang", False)])
@pytest.mark.parametrize("num_top", [0, 2])
def test_log_probabilities_come_with_the_tokens_of_a_kind_that_tells_them(
    kind: Kind, num_top: int, tokenizer: Tokenizer, *, repeats: bool
) -> None:
    with standing_in(kind, repeats=repeats) as server:
        run = asked(server, tokenizer, num_top=num_top)
        assert run.follow() == Finished(FinishReason.LENGTH)
        scored = scored_of(run)
        run.close()
    assert list(scored.ids) == [1000, 1001, 1002, 1003, 1004]
    assert [each.log_prob for each in scored.scores] == [log_prob_of(each) for each in scored.ids]
    assert [list(each.top) for each in scored.scores] == [[(7, -0.5), (8, -0.75)][:num_top]] * 5


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_answer_without_the_log_probabilities_that_were_asked_for_is_none(
    kind: Kind, tokenizer: Tokenizer
) -> None:
    with standing_in(kind, forgets_scores=True) as server:
        run = asked(server, tokenizer, num_top=1)
        error = run.error()
        assert isinstance(error, RetryableEngineError)
        assert "log probabilities" in error.said
        assert not run.engine_is_done
        run.close()


@pytest.mark.parametrize("kind", ["trtllm-serve", "openai"])
def test_a_kind_that_tells_no_log_probabilities_is_not_asked_for_them(
    kind: Kind, tokenizer: Tokenizer
) -> None:
    with standing_in(kind) as server:
        with pytest.raises(EngineUnableError, match="does not take logprobs and top_logprobs"):
            asked(server, tokenizer, num_top=1)
        assert server.bodies == []


def told_of(
    server: LlamaServer, ids: list[int], token_id: int, num_top: int
) -> tuple[float | None, list[int]]:
    """What the server tells of a token in this place: its score, if it is likely, and the top."""
    body = {"prompt": ids, "n_predict": 1, "n_probs": 2000, "temperature": 0, "grammar": "root ::= [a-z]"}
    answer = httpx2.post(f"{server.url}/completion", json=body, timeout=60).raise_for_status().json()
    likely = answer["completion_probabilities"][0]["top_logprobs"]
    scores = {each["id"]: each["logprob"] for each in likely}
    return scores.get(token_id), [each["id"] for each in likely[:num_top]]


def assert_scored(server: LlamaServer, prompt: list[int], found: LogProbs, *, num_top: int) -> None:
    """Each token has the score that the server tells of its place, and so have others in it."""
    for place, (token_id, given) in enumerate(zip(found.ids, found.scores, strict=True)):
        score, top = told_of(server, [*prompt, *found.ids[:place]], token_id, num_top)
        # A prompt's tokens are computed in other batches than an answer's, and round differently.
        assert (
            LEAST < given.log_prob < -7 if score is None else given.log_prob == pytest.approx(score, abs=0.1)
        )
        assert len(given.top) == num_top
        assert {each for each, _ in given.top} & {*top}, place


GERMAN = "Wie schön: Äpfel, Öl, Übermut, größer, weiß, für, über, Äpfel, Öl, Übermut, größer, weiß, für, Öl,"
SQUIDS = "🦑🦑🦑🦑🦑"  # three tokens each, of which the stream shows the last alone


@pytest.mark.parametrize("text", ["Once upon a time", GERMAN, SQUIDS])
def test_llama_cpp_tells_them_of_every_token(llama: LlamaServer, tokenizer: Tokenizer, text: str) -> None:
    prompt = tokenizer.encode_text(text).tolist()
    llama.whole(prompt, 1)  # the prompt is in its cache from here on, so every answer is rounded alike
    run = asked(llama, tokenizer, text, max_tokens=12, num_top=3, is_endless=True)
    assert run.follow() == Finished(FinishReason.LENGTH)
    found, output = scored_of(run), run.answer.output()
    run.close()
    assert [*found.ids] == llama.whole(prompt, 12, ignore_eos=True)
    assert b"".join(found.spelled[each] for each in found.ids).decode(errors="replace") == output.text
    assert_scored(llama, prompt, found, num_top=3)


def test_a_cut_answer_has_those_of_an_uncut_one(llama: LlamaServer, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode_text("Once upon a time")
    llama.whole(prompt.tolist(), 1)
    parts: list[LogProbs] = []
    for num_tokens in (30, 11, 19):
        so_far = [each for part in parts[1:] for each in part.ids]
        ids = np.concatenate([prompt, np.array(so_far, dtype=np.int32)])
        run = asked(llama, tokenizer, ids=ids, max_tokens=num_tokens, num_top=2, is_endless=True)
        assert run.follow() == Finished(FinishReason.LENGTH)
        parts.append(scored_of(run))
        run.close()
    whole, *cut = parts
    assert [token_id for each in cut for token_id in each.ids] == [*whole.ids]
    scores = [score for each in cut for score in each.scores]
    assert [each.log_prob for each in scores] == pytest.approx(
        [each.log_prob for each in whole.scores], abs=0.1
    )
    assert [each.top[0][0] for each in scores] == [each.top[0][0] for each in whole.scores]


def test_they_are_of_the_model_however_the_tokens_are_picked(
    llama: LlamaServer, tokenizer: Tokenizer
) -> None:
    """Neither the temperature nor a bias changes them."""
    picked = Sampling(temperature=2.0, seed=3, logit_bias=((504, 100.0),))
    run = asked(llama, tokenizer, "Once upon", max_tokens=1, num_top=1, sampling=picked, is_endless=True)
    assert run.follow() == Finished(FinishReason.LENGTH)
    found = scored_of(run)
    run.close()
    assert [*found.ids] == [504]
    assert found.scores[0].top[0][0] != 504
    assert_scored(llama, tokenizer.encode_text("Once upon").tolist(), found, num_top=1)


def test_a_guided_answer_has_them_of_characters_of_several_tokens_too(
    llama: LlamaServer, tokenizer: Tokenizer
) -> None:
    """Some of its tokens are as good as impossible; no other request goes on in the middle of a grammar."""
    text = "Grüße, 🦑!"
    guide = Guide(GuideKind.GRAMMAR, f'root ::= "{text}"')
    run = asked(llama, tokenizer, "A poem: ", max_tokens=60, num_top=2, guide=guide)
    assert run.follow() == Finished(FinishReason.STOP)
    assert run.engine_is_done
    found, output = scored_of(run), run.answer.output()
    run.close()
    assert output.text == text
    spelled = [found.spelled[each] for each in found.ids]
    assert b"".join(spelled).decode() == text
    assert [*found.offsets] == [
        len(b"".join(spelled[:end]).decode(errors="ignore")) for end in range(len(found))
    ]
    assert_scored(llama, tokenizer.encode_text("A poem: ").tolist(), found, num_top=2)
