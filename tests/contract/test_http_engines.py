"""What each kind of HTTP engine tells of itself, over a stand-in, and what is refused for want of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from jobs.diagnostics import Finding
from jobs.embeddings import vectors
from jobs.errors import EngineError, EngineUnableError, EngineUnavailableError
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSettings, EngineSide
from stand_in_engine import METRICS, Kind, StandIn, standing_in
from standing_in.kinds import KINDS, WHOLE, client_of
from worker.engine import loop
from worker.engine.deltas import EngineDelta, VectorDelta
from worker.engine.gauges import Gauges, load_finding
from worker.engine.http.vllm import blocks_per_sequence
from worker.engine.probe import inspect as inspect_engine
from worker.engine.request import Request, Sampling

LACKS: Mapping[Kind, list[str]] = {
    "vllm": ["dimensions", "embeddings", "lora"],
    "sglang": ["bad_words", "dimensions", "embeddings", "lora"],
    "trtllm-serve": [
        *("bad_words", "dimensions", "embeddings", "logit_bias", "logprobs", "lora", "top_logprobs")
    ],
    "openai": [
        *("bad_words", "dimensions", "embeddings"),
        *("guided_choice", "guided_grammar", "guided_json", "guided_regex", "ignore_eos"),
        *("logit_bias", "logprobs", "lora", "min_p", "min_tokens", "repetition_penalty"),
        *("stop_token_ids", "top_k", "top_logprobs"),
    ],
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load()


@pytest.mark.parametrize("kind", KINDS)
def test_the_key_is_sent_and_a_wrong_one_is_no_job_s_fault(kind: Kind) -> None:
    with standing_in(kind, api_key="right") as server:
        right = client_of(server, api_key=SecretStr("right"), **WHOLE)
        assert right.served().kind == kind
        right.close()
        wrong = client_of(server, api_key=SecretStr("wrong"), **WHOLE)
        with pytest.raises(EngineUnavailableError) as caught:
            wrong.describe()
        assert "Unauthorized" in caught.value.said
        wrong.close()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "vllm",
            Gauges(
                max_blocks=100,
                used_blocks=25,
                tokens_per_block=16,
                waiting_requests=0,
                blocks_per_sequence=0,
            ),
        ),
        ("sglang", Gauges(max_blocks=80, used_blocks=3, tokens_per_block=16, waiting_requests=0)),
        (
            "trtllm-serve",
            Gauges(max_requests=8, max_blocks=200, used_blocks=7, tokens_per_block=32, waiting_requests=1),
        ),
        ("openai", None),
    ],
)
def test_gauges_are_read_from_the_kind_s_own_metrics(kind: Kind, expected: Gauges | None) -> None:
    with standing_in(kind, num_waiting=1) as server:
        client = client_of(server)
        client.served()
        assert client.gauges() == expected
        client.close()
    with standing_in(kind, has_metrics=False) as server:
        client = client_of(server)
        client.served()
        assert client.gauges() is None
        client.close()


@pytest.mark.parametrize(("caches", "has_metrics"), [(True, True), (False, True), (True, False)])
def test_vllm_is_asked_whether_it_caches_prefixes(*, caches: bool, has_metrics: bool) -> None:
    with standing_in("vllm", caches=caches, has_metrics=has_metrics) as server:
        client = client_of(server)
        assert client.served().abilities.reuses_prefix is caches
        client.close()


def vllm_metrics(*, engines: int = 1, constant: int | None = 0, usage: Sequence[float] = (0.25,)) -> str:
    """Metrics of engines with 9216 blocks each and a context of 131,072 tokens, which are 8192 blocks.

    Args:
        engines: how many there are.
        constant: blocks of a sequence on top; None: of a release before 0.24, which does not report it.
        usage: each engine's.
    """
    labels = f'block_size="16",num_gpu_blocks="{9216 * engines}",sliding_window="None"'
    if constant is not None:
        concurrency = 9216 / (8192 + constant)
        tokens = int(concurrency * 131_072)
        labels += f',kv_cache_size_tokens="{tokens}",kv_cache_max_concurrency="{concurrency}"'
    lines = [f'vllm:cache_config_info{{engine="{each}",{labels}}} 1' for each in range(engines)]
    lines += [f'vllm:kv_cache_usage_perc{{engine="{each}"}} {share}' for each, share in enumerate(usage)]
    return "\n".join([*lines, ""])


@pytest.mark.parametrize(
    ("constant", "setting", "reserved", "kept_free"),
    [
        *((521, None, 521, 0), (0, None, 0, 0), (521, 600, 600, 0), (521, 9, 9, 512)),
        *((None, None, 0, 0), (None, 9, 9, 0)),
    ],
)
def test_what_a_sequence_of_vllm_does_not_keep_is_reserved_once_for_the_engine(
    *,
    constant: int | None,
    setting: int | None,
    reserved: int,
    kept_free: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(METRICS, "vllm", vllm_metrics(constant=constant))
    with standing_in("vllm") as server:
        client = client_of(server, max_batch_size=4, blocks_per_sequence=setting)
        found = client.describe().capacity
        client.close()
    assert (found.blocks_per_sequence, found.max_blocks) == (reserved, 9215 - kept_free)


@pytest.mark.parametrize(
    ("constant", "setting", "status", "words"),
    [
        (521, None, "ok", "521 blocks a sequence, as the engine reports"),
        (521, 521, "ok", "521 blocks a sequence, as set"),
        (521, 9, "ok", "9 blocks a sequence, as set, and 512 once for all prompts that are being read"),
        (521, 0, "warning", "0 blocks a sequence, as set, and 521 once for all prompts that are being read"),
        (None, None, "warning", "is not told, and nothing is reserved"),
        (None, 0, "ok", "0 blocks a sequence, as set"),
    ],
)
def test_an_inspection_compares_the_constant_that_is_set_with_vllm_s(  # a table
    *,
    constant: int | None,
    setting: int | None,
    status: str,
    words: str,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(METRICS, "vllm", vllm_metrics(constant=constant))
    with standing_in("vllm") as server:
        engine = {"url": server.url, "max_batch_size": 4, "blocks_per_sequence": setting}
        side = EngineSide(engine=EngineSettings.model_validate(engine))
        (found,) = [each for each in inspect_engine(side, tokenizer) if each.name == "abilities"]
    assert (found.status, words in found.detail) == (status, True)
    assert ("LONGBATCH_ENGINE__BLOCKS_PER_SEQUENCE" in found.advice) == (status == "warning")


@given(
    tokens_per_block=st.sampled_from([16, 32, 64, 128, 544, 1552]),
    longest=st.integers(1, 2**21),
    constant=st.integers(-100, 20_000),
    spare=st.integers(0, 10**6),
    engines=st.integers(1, 8),
)
def test_the_constant_is_exact_for_whatever_vllm_reports(
    *, tokens_per_block: int, longest: int, constant: int, spare: int, engines: int
) -> None:
    of_longest = max(1, -(-longest // tokens_per_block) + constant)
    blocks = of_longest + spare  # a server that cannot hold one sequence does not start
    concurrency = blocks / of_longest
    labels = {
        "block_size": str(tokens_per_block),
        "num_gpu_blocks": str(blocks * engines),
        "kv_cache_size_tokens": str(int(concurrency * longest)),
        "kv_cache_max_concurrency": str(concurrency),
    }
    expected = max(0, of_longest - -(-longest // tokens_per_block))
    assert blocks_per_sequence(labels, engines) == expected


def test_data_parallel_engines_of_vllm_are_counted_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "vllm", vllm_metrics(engines=4, constant=521, usage=(0.5, 0.5, 0.5, 0.5)))
    with standing_in("vllm") as server:
        client = client_of(server, max_batch_size=4)
        client.served()
        gauges = client.gauges()
        client.close()
    assert gauges is not None
    assert (gauges.max_blocks, gauges.used_blocks) == (4 * 9215, 2 * 9215)
    assert gauges.blocks_per_sequence == 521


def test_an_engine_whose_metrics_never_show_its_pool_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    without_pool = "\n".join(each for each in METRICS["sglang"].split("\n") if "max_total" not in each)
    monkeypatch.setitem(METRICS, "sglang", without_pool)
    with standing_in("sglang") as server:
        client = client_of(server)
        sizes = {client.describe().capacity.max_blocks for _ in range(3)}
        client.close()
    assert sizes == {80}
    assert len(server.probes) == 1


def test_another_kind_of_server_at_the_same_address_is_noticed() -> None:
    with standing_in("vllm") as server:
        client = client_of(server, **WHOLE)
        assert client.served().kind == "vllm"
        server.kind = "sglang"
        assert client.served().kind == "sglang"
        client.close()


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        ("vllm", ["MAX_BATCH_SIZE"]),
        ("sglang", []),
        ("trtllm-serve", []),
        ("openai", ["MAX_BATCH_SIZE", "MAX_BLOCKS", "TOKENS_PER_BLOCK"]),
    ],
)
def test_what_a_kind_does_not_tell_is_refused_by_the_setting_s_name(kind: Kind, missing: list[str]) -> None:
    with standing_in(kind) as server:
        client = client_of(server)
        if missing:
            with pytest.raises(EngineError) as caught:
                client.describe()
            assert [f"LONGBATCH_ENGINE__{name}" in caught.value.message for name in missing] == [True] * len(
                missing
            )
            client.close()
            client = client_of(server, **WHOLE)
        capacity = client.describe().capacity
        client.close()
    sizes = (capacity.max_batch_size, capacity.max_blocks, capacity.tokens_per_block, capacity.max_seq_len)
    assert (
        sizes
        == {
            "vllm": (4, 64, 32, 4096),
            "sglang": (6, 80, 16, 2046),
            "trtllm-serve": (8, 200, 32, 131_072),
            "openai": (4, 64, 32, 131_072),
        }[kind]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_inspection_explains_every_kind_in_words(kind: Kind, tokenizer: Tokenizer) -> None:
    with standing_in(kind) as server:
        engine = {"url": server.url, "kind": "openai" if kind == "openai" else "auto"} | WHOLE
        side = EngineSide(engine=EngineSettings.model_validate(engine))
        found = {each.name: each for each in inspect_engine(side, tokenizer)}
    assert found["server"].detail.endswith(f"runs {kind}")
    assert found["answer"].status == "ok"
    assert found["capacity"].status == "ok"
    assert found["abilities"].facts["lacks"] == LACKS[kind]
    assert found["abilities"].facts["can_resume"] == (kind != "openai")
    assert (found["metrics"].status == "warning") == (kind == "openai")
    if kind != "openai":
        assert "0 requests inside, 0 waiting inside" in found["metrics"].detail
    assert found["tokenizer"].status == "unknown"


def inspected_metrics(server: StandIn, tokenizer: Tokenizer) -> Finding:
    side = EngineSide(engine=EngineSettings.model_validate({"url": server.url, "max_batch_size": 4}))
    (metrics,) = [each for each in inspect_engine(side, tokenizer) if each.name == "metrics"]
    return metrics


def test_requests_that_wait_inside_the_engine_are_normal(tokenizer: Tokenizer) -> None:
    with standing_in("trtllm-serve", num_waiting=3) as server:
        metrics = inspected_metrics(server, tokenizer)
    assert metrics.status == "ok"
    assert "0 requests inside, 3 waiting inside" in metrics.detail


def test_an_inspection_warns_of_preemptions(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    preempted = METRICS["vllm"] + 'vllm:num_preemptions_total{engine="0"} 2.0\n'
    monkeypatch.setitem(METRICS, "vllm", preempted)
    with standing_in("vllm") as server:
        metrics = inspected_metrics(server, tokenizer)
    assert metrics.status == "warning"
    assert "2 preemptions since it started" in metrics.detail
    assert "BLOCKS_PER_SEQUENCE" in metrics.advice


def test_requests_above_ours_are_another_client_s() -> None:
    gauges = Gauges(active_requests=3, waiting_requests=1, max_blocks=10)
    assert load_finding(gauges, num_ours=4).status == "ok"
    assert load_finding(gauges).status == "ok"
    found = load_finding(gauges, num_ours=3)
    assert (found.status, "another client" in found.advice) == ("warning", True)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_embedding_model_gives_vectors_and_generates_nothing(kind: Kind, tokenizer: Tokenizer) -> None:
    with standing_in(kind, embeds=True) as server:
        client = client_of(server, **WHOLE, shortens_vectors=True)
        served = client.served()
        assert client.answers(served, timeout=30), "the probe asks for a vector"
        client.close()
        assert served.abilities.takes == ({"embeddings", "dimensions"})
        ids = tokenizer.encode_text("The weather")
        request = Request(
            request_id="a", ids=ids, max_tokens=1, end_id=2, pad_id=2, sampling=Sampling(), is_embedding=True
        )
        found: list[EngineDelta] = []
        end = loop.run(served.call(request).run(found.append, sent=lambda: None))
        assert (end.error, end.confirmed) == (None, True)
        [delta] = found
        assert isinstance(delta, VectorDelta)
        assert vectors.unpack(delta.packed) == [0.5, -0.25, 0.75]
        assert server.asked()["input"] == [ids.tolist()]
        with pytest.raises(EngineUnableError, match="does not take temperature"):
            served.call(replace(request, is_embedding=False, sampling=Sampling(temperature=0.5, top_p=0.5)))


def test_an_engine_that_does_not_embed_refuses_to() -> None:
    with standing_in("vllm") as server:
        client = client_of(server, **WHOLE)
        served = client.served()
        client.close()
        assert served.abilities.is_generating
        ids = np.array([7], dtype=np.int32)
        with pytest.raises(EngineUnableError, match="does not take embeddings"):
            served.call(Request(request_id="a", ids=ids, max_tokens=1, end_id=2, pad_id=2, is_embedding=True))
