"""What SGLang's own server reports, refuses and repeats, as our adapter understands it."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from entry_points import Asked, ask
from jobs.errors import EngineError
from jobs.prompts.guides import Guide, GuideKind
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSide
from jobs.states import FinishReason
from scripted_model import POSITIONS
from sglang_server import SglangServer
from standing_in import sglang
from support import eventually
from worker.engine.engine import ServedModel
from worker.engine.probe import inspect as inspect_engine
from worker.engine.request import Sampling, WantedAdapter
from worker.inference.answer import Answer
from worker.inference.outcome import Failed, Finished

pytestmark = pytest.mark.timeout(900)
KEY, ADMIN_KEY = "ordinary", "admin"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[SglangServer]:
    """A server whose events hold new tokens alone, with keys, adapters and a pool for windows."""
    directory = tmp_path_factory.mktemp("tuned")
    made = SglangServer(
        directory,
        tokenizer,
        "--incremental-streaming-output",
        "--enable-deterministic-inference",
        *("--attention-backend", "triton"),
        *("--api-key", KEY, "--admin-api-key", ADMIN_KEY),
        *("--enable-lora", "--lora-paths", f"polite={_adapter(directory / 'polite')}"),
        *("--lora-target-modules", "q_proj", "--max-lora-rank", "8"),
        *("--lora-backend", "triton"),
        window_pool=4096,
        key=KEY,
    ).start()
    yield made
    made.kill()


@pytest.fixture(params=["plain", "tuned"])
def either(request: pytest.FixtureRequest) -> SglangServer:
    found: SglangServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def sent(plain: SglangServer) -> dict[str, Any]:
    found = sglang.sent_by(plain.url)
    if os.environ.get("LONGBATCH_RECORD"):
        sglang.RECORD.write_text(json.dumps(found, indent=1) + "\n")
    return found


def _adapter(directory: Path) -> Path:
    directory.mkdir()
    about = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(about))
    return directory


def asked(server: SglangServer, tokenizer: Tokenizer, ids: list[int], **options: Any) -> Asked:  # noqa: ANN401  # of `ask`
    return ask(server.model(), tokenizer, np.array(ids, dtype=np.int32), **options)


def findings(server: SglangServer, tokenizer: Tokenizer) -> dict[str, str]:
    side = EngineSide(engine=server.settings)
    return {each.name: each.status for each in inspect_engine(side, tokenizer)}


def test_the_capacity_of_a_server_without_options_is_known(plain: SglangServer) -> None:
    found = plain.client.describe().capacity
    assert (found.max_batch_size, found.max_blocks, found.tokens_per_block) == (4, 2 * POSITIONS // 16, 16)
    assert (found.max_seq_len, found.max_input_len) == (POSITIONS - 2, POSITIONS - 7)


def test_the_longest_request_that_is_promised_is_answered(plain: SglangServer, tokenizer: Tokenizer) -> None:
    found = plain.client.describe().capacity
    longest = [5] * found.max_input_len
    run = asked(plain, tokenizer, longest, max_tokens=found.max_seq_len - found.max_input_len)
    assert run.follow() == Finished(FinishReason.LENGTH)
    assert run.answer.num_tokens == 5
    run.close()


def test_a_longer_prompt_is_refused_in_the_stream(plain: SglangServer, tokenizer: Tokenizer) -> None:
    longest = plain.client.describe().capacity.max_input_len
    for ids, said in (([5] * (longest + 1), "maximum allowed length"), ([5] * POSITIONS, "context length")):
        run = asked(plain, tokenizer, ids, max_tokens=1)
        error = run.error()
        assert type(error) is EngineError
        assert said in error.message
        assert run.engine_is_done
        assert not run.answer.num_tokens
        run.close()


def test_more_than_the_context_is_no_shortened_answer(plain: SglangServer, tokenizer: Tokenizer) -> None:
    longest = plain.client.describe().capacity.max_input_len
    for num_more, said in ((6, "5 of 6 tokens"), (100, "maximum context length")):
        run = asked(plain, tokenizer, [5] * longest, max_tokens=num_more)
        error = run.error()
        assert type(error) is EngineError
        assert said in error.message
        run.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sampling": Sampling(temperature=1, top_p=5)}, "top_p must be in (0, 1]"),
        ({"guide": Guide(GuideKind.GRAMMAR, "root ::= nosuch")}, "Failed to compile ebnf grammar"),
        ({"adapter": WantedAdapter("nosuch", 1, "safetensors", "", b"")}, "LoRA"),
    ],
    ids=["value", "grammar", "adapter"],
)
def test_a_refusal_under_status_200_is_the_request_s_fault(
    plain: SglangServer, tokenizer: Tokenizer, options: dict[str, Any], said: str
) -> None:
    model = plain.model()
    request = {"max_tokens": 3} | options
    run = ask(_taking_all(model), tokenizer, np.array([5, 6], dtype=np.int32), **request)
    outcome = run.follow()
    assert isinstance(outcome, Failed)
    assert type(outcome.error) is EngineError
    assert said in outcome.error.message
    assert run.engine_is_done
    run.close()


def test_every_guide_and_parameter_is_taken(either: SglangServer, tokenizer: Tokenizer) -> None:
    guides = [
        Guide(GuideKind.JSON, '{"type":"object"}'),
        Guide(GuideKind.REGEX, "a+"),
        Guide(GuideKind.CHOICE, '["a","b"]'),
        Guide(GuideKind.GRAMMAR, 'root ::= "x"'),
    ]
    rich = Sampling(
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        seed=2**64 - 1,
        min_tokens=1,
        min_p=0.1,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias=((7, -100.0),),
        stop_token_ids=(9,),
    )
    for guide in (None, *guides):
        run = asked(either, tokenizer, [5, 6], max_tokens=3, guide=guide, sampling=rich, stops=["zzz"])
        assert run.follow() == Finished(FinishReason.LENGTH)
        run.close()


def test_log_probabilities_are_those_of_the_answer_s_tokens(
    either: SglangServer, tokenizer: Tokenizer
) -> None:
    run = asked(either, tokenizer, [5, 6], max_tokens=300, num_top=2)
    assert run.follow() == Finished(FinishReason.LENGTH)
    assert isinstance(run.answer, Answer)
    assert list(run.answer.ids) == [*range(1000, 1300)]
    run.close()


@pytest.mark.parametrize("num_tokens", [1, 300, 5000])
def test_an_answer_is_whole_whether_events_repeat_it_or_not(
    either: SglangServer, tokenizer: Tokenizer, num_tokens: int
) -> None:
    run = asked(either, tokenizer, [5, 6], max_tokens=num_tokens)
    assert run.follow() == Finished(FinishReason.LENGTH)
    assert isinstance(run.answer, Answer)
    assert list(run.answer.ids) == [*range(1000, 1000 + num_tokens)]
    run.close()


def test_an_inspection_names_the_options_that_are_missing(
    plain: SglangServer, tuned: SglangServer, tokenizer: Tokenizer
) -> None:
    missing, given = findings(plain, tokenizer), findings(tuned, tokenizer)
    assert (missing["streams"], missing["seed"]) == ("warning", "warning")
    assert "windows" not in missing
    assert not {"streams", "seed"} & set(given)
    assert given["windows"] == "warning"
    assert missing["server"] == given["server"] == "ok"


def test_an_adapter_of_the_server_answers_by_its_name(tuned: SglangServer, tokenizer: Tokenizer) -> None:
    abilities = tuned.model().abilities
    assert abilities.adapters == ("polite",)
    adapter = WantedAdapter("polite", 1, "safetensors", "", b"")
    run = asked(tuned, tokenizer, [5, 6], max_tokens=3, adapter=adapter)
    assert run.follow() == Finished(FinishReason.LENGTH)
    run.close()


def test_a_stop_request_that_needs_the_admin_key_cuts_the_stream(
    tuned: SglangServer, tokenizer: Tokenizer
) -> None:
    with httpx2.Client(base_url=tuned.url, headers={"Authorization": f"Bearer {KEY}"}) as http:
        assert http.post("/abort_request", json={"rid": "nosuch"}).status_code == 401
    run = asked(tuned, tokenizer, [5, 6], max_tokens=100_000)
    run.first()
    run.stream.stop()
    assert not run.end().confirmed
    run.close()
    eventually(lambda: tuned.gauges()["active"] == 0)


def test_the_key_is_sent_and_a_wrong_one_is_refused(tuned: SglangServer) -> None:
    assert tuned.client.is_ready()
    with httpx2.Client(base_url=tuned.url) as http:
        assert http.get("/v1/models").status_code == 401


def _taking_all(model: ServedModel) -> ServedModel:
    """The model, of which nothing is refused before it is sent."""

    return replace(model, abilities=replace(model.abilities, lacks=frozenset(), adapters=None))


@pytest.mark.parametrize("name", sglang.names())
def test_the_record_for_the_stand_in_is_what_the_server_sends(name: str, sent: dict[str, Any]) -> None:
    assert sent[name] == sglang.recorded()[name]
