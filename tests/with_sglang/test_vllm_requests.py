"""The bodies that we send to vLLM are taken by the request model of its newest release."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from jobs.prompts.guides import Guide, GuideKind
from sglang_server import PYTHON
from worker.engine.kinds import HTTP_KINDS
from worker.engine.request import Request, Sampling, WantedAdapter

_CHECK: Final = Path("tests/with_sglang/server/vllm_requests.py")
SAMPLINGS: Final[Mapping[str, Sampling]] = {
    "greedy": Sampling(),
    "drawn": Sampling(temperature=0.7, top_p=0.9, top_k=40, seed=2**64 - 1, min_p=0.1),
    "penalties": Sampling(frequency_penalty=0.5, presence_penalty=-0.5, repetition_penalty=1.1),
    "ends": Sampling(min_tokens=2, stop_token_ids=(7, 9), bad_words=("no",)),
    "biased": Sampling(temperature=1, logit_bias=((7, -100.0), (8, 5.0))),
}
FORMS: Final[Mapping[str, Guide | None]] = {
    "no form": None,
    "json": Guide(GuideKind.JSON, '{"type":"object"}'),
    "regex": Guide(GuideKind.REGEX, "a+"),
    "choice": Guide(GuideKind.CHOICE, '["a","b"]'),
    "grammar": Guide(GuideKind.GRAMMAR, 'root ::= "x"'),
}
OTHERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "log probabilities": {"num_top": 3},
    "adapter": {"adapter": WantedAdapter("polite", 1, "safetensors", "", b"")},
    "endless": {"end_id": -1},
    "stops": {"stops": ("a", "b")},
    "salt": {"cache_salt": "abc"},
}


def body(**options: Any) -> Mapping[str, Any]:  # noqa: ANN401  # of `Request`
    given: dict[str, Any] = {
        "ids": np.array([5, 6], dtype=np.int32),
        "max_tokens": 9,
        "end_id": 2,
        "pad_id": 2,
    }
    request = Request(request_id="a", **(given | options))
    return HTTP_KINDS["vllm"].dialect("served", request).body()


def bodies() -> dict[str, Mapping[str, Any]]:
    sampled = {
        f"{sampling}, {form}": body(sampling=SAMPLINGS[sampling], guide=FORMS[form])
        for sampling in SAMPLINGS
        for form in FORMS
    }
    return sampled | {name: body(**options) for name, options in OTHERS.items()}


def faults(checked: Sequence[Mapping[str, Any]]) -> list[str]:
    answer = subprocess.run(
        [str(PYTHON), str(_CHECK)],
        input=json.dumps(checked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert not answer.returncode, answer.stderr[-2000:]
    found: list[str] = json.loads(answer.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(600)
def test_every_body_is_taken_by_vllm_s_own_request_model() -> None:
    checked = bodies()
    found = dict(zip(checked, faults([*checked.values()]), strict=True))
    assert {name: fault for name, fault in found.items() if fault} == {}


@pytest.mark.timeout(600)
def test_a_wrong_body_and_an_unknown_field_are_noticed() -> None:
    good = dict(body())
    assert faults([good | {"nosuch": 1}, good | {"temperature": "warm"}])[0] == "unknown: nosuch"
    assert all(faults([good | {"nosuch": 1}, good | {"top_p": 5}]))
