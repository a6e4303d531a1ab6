"""`longbatch up --engine-url`: what is found at a URL before anything starts, and what is refused.

llama.cpp is real; vLLM, SGLang and plain endpoints are stand-ins, see `stand_in_engine`.
"""

import functools
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from cli.stack.engine_urls import EngineUrls
from cli.stack.errors import StackError
from cli.stack.found_engines import FoundEngine, find_engines
from cli.stack.ports import LOOPBACK, free_port
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.valkey import EmbeddedValkey
from gguf_support import smollm2
from jobs.prompts.gguf_tokenizer import ensure_gguf_tokenizer
from jobs.prompts.tokenizer import Tokenizer
from llama_support import running_llama
from local_engine import RunningEngine, running_engine
from stand_in_engine import METRICS, standing_in


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_gguf_tokenizer(smollm2(), tmp_path_factory.mktemp("smollm2"))


@pytest.fixture
def encoding(tokenizer_dir: Path) -> Any:  # noqa: ANN401  # a function of a text
    tokenizer = Tokenizer.load(str(tokenizer_dir))
    return lambda text: tokenizer.encode_text(text).tolist()


def found(url: str, **options: Any) -> FoundEngine:  # noqa: ANN401  # of EngineUrls
    (engine,) = find_engines(EngineUrls(urls=(url,), **options), os.environ)
    return engine


def refusal(*urls: str, **options: Any) -> str:  # noqa: ANN401  # of EngineUrls
    with pytest.raises(StackError) as caught:
        find_engines(EngineUrls(urls=urls, **options), os.environ)
    assert "\n" not in caught.value.message
    return caught.value.message


@contextmanager
def web_server(directory: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(
        (LOOPBACK, 0), functools.partial(SimpleHTTPRequestHandler, directory=directory)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{LOOPBACK}:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_closed_port_is_refused(scheme: str) -> None:
    url = f"{scheme}://{LOOPBACK}:{free_port()}"
    assert refusal(url) == f"nothing answers at {url} (connection refused): is the engine running?"


def test_a_name_that_does_not_resolve_is_refused() -> None:
    assert refusal("http://no-such-host.invalid:8000").startswith(
        "nothing answers at http://no-such-host.invalid:8000 ("
    )


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://host/api"])
def test_what_is_no_address_of_an_engine_is_refused(url: str) -> None:
    assert "is no engine's address: give http://host:port" in refusal(url)


@pytest.mark.parametrize("url", ["http://a:99999", "http://[::1"])
def test_an_address_without_a_valid_port_is_refused(url: str) -> None:
    assert refusal(url) == "--engine-url has no valid host and port: give http://host:port."


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    assert refusal("http://user:secret@127.0.0.1:1") == (
        "--engine-url has a user or password: give a key in LONGBATCH_ENGINE__API_KEY."
    )


def test_a_web_server_that_is_no_engine_is_refused(tmp_path: Path) -> None:
    with web_server(tmp_path) as url:
        assert refusal(url).startswith(f"{url} answers, but is no engine (GET /v1/models: 404): give the ")


def test_a_web_server_is_no_triton(tmp_path: Path) -> None:
    with web_server(tmp_path) as address:
        url = address.replace("http", "grpc")
        assert refusal(url).startswith(f"{url} cannot be used: ")


def test_a_server_that_never_answers_is_refused() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent:
        url = f"http://{LOOPBACK}:{silent.getsockname()[1]}"
        assert refusal(url) == (
            f"nothing answers at {url} (no answer to GET /v1/models): is the engine running?"
        )


def test_a_port_that_speaks_no_http_is_refused(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path)
    server.start()
    try:
        url = f"http://{LOOPBACK}:{server.port}"
        assert refusal(url).startswith(f"{url} answers, but is no engine (GET /v1/models: ")
    finally:
        server.stop()


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with running_engine(tmp_path_factory.mktemp("triton"), EngineOptions(mode="synthetic")) as engine:
        yield engine


def test_triton_is_found_by_its_grpc_port_alone(
    triton: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = triton.launch
    metrics_url = f"http://{LOOPBACK}:{launch.metrics_port}/metrics"
    monkeypatch.setenv("LONGBATCH_TRITON__METRICS_URL", metrics_url)
    url = f"grpc://{LOOPBACK}:{launch.grpc_port}"
    engine = found(url)
    assert (engine.engine.kind, engine.engine.model) == ("triton", "tensorrt_llm")
    assert engine.settings["LONGBATCH_ENGINE__URL"] == url
    assert "LONGBATCH_ENGINE__KIND" not in engine.settings
    assert engine.engine.capacity is not None
    assert "this is Triton's HTTP port; give its gRPC port" in refusal(
        f"http://{LOOPBACK}:{launch.http_port}"
    )


def test_sglang_reports_its_whole_capacity(tokenizer_dir: Path) -> None:
    with standing_in("sglang", root=str(tokenizer_dir)) as server:
        engine = found(server.url)
    assert engine.engine.kind == "sglang"
    assert engine.engine.capacity is not None
    assert (engine.engine.capacity.max_batch_size, engine.engine.capacity.max_seq_len) == (6, 2046)


def test_one_of_several_models_must_be_chosen(tokenizer_dir: Path) -> None:
    options = {"slots": 4, "tokenizer": str(tokenizer_dir)}
    with standing_in("vllm", models=("small", "large")) as server:
        said = refusal(server.url, **options)
        assert said == f"{server.url} has several models: choose one with --engine-model (small, large)."
        said = refusal(server.url, model="huge", **options)
        assert said == f"{server.url} has no model huge: give --engine-model one of small, large."
        engine = found(server.url, model="large", **options)
    assert engine.engine.model == "large"
    assert engine.settings["LONGBATCH_ENGINE__SERVED_MODEL"] == "large"
    assert engine.defaults["LONGBATCH_ENGINE__MODEL"] == "large"


def test_an_unknown_capacity_names_its_flags(tokenizer_dir: Path) -> None:
    tokenizer = str(tokenizer_dir)
    with standing_in("vllm") as server:
        said = refusal(server.url, tokenizer=tokenizer)
        assert "does not report its whole capacity: add --engine-slots N" in said
        assert "--engine-kv-tokens" not in said
        assert "--max-num-seqs" in said
    with standing_in("openai") as server:
        said = refusal(server.url, tokenizer=tokenizer)
        assert "add --engine-slots N (requests at once) and --engine-kv-tokens N" in said
        engine = found(server.url, slots=3, kv_tokens=8200, tokenizer=tokenizer)
    assert engine.settings["LONGBATCH_ENGINE__KIND"] == "openai"
    assert engine.settings["LONGBATCH_ENGINE__MAX_BATCH_SIZE"] == "3"
    assert engine.settings["LONGBATCH_ENGINE__MAX_BLOCKS"] == str(8200 // 32)
    assert engine.settings["LONGBATCH_ENGINE__MAX_SEQ_LEN"] == "8200", "a longer one could never run"
    assert engine.check.status == "unknown"
    assert engine.words().endswith(f"tokenizer {tokenizer} (not compared)")


def test_a_missing_and_a_wrong_key_are_told_apart(
    tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"slots": 4, "tokenizer": str(tokenizer_dir)}
    with standing_in("vllm", api_key="right") as server:
        for server.is_open in (False, True):
            monkeypatch.delenv("LONGBATCH_ENGINE__API_KEY", raising=False)
            said = refusal(server.url, **options)
            assert said == f"{server.url} needs a key (status 401): set LONGBATCH_ENGINE__API_KEY."
            monkeypatch.setenv("LONGBATCH_ENGINE__API_KEY", "wrong")
            assert f"{server.url} refuses the key in LONGBATCH_ENGINE__API_KEY" in refusal(
                server.url, **options
            )
            monkeypatch.setenv("LONGBATCH_ENGINE__API_KEY", "right")
            assert found(server.url, **options).settings["LONGBATCH_ENGINE__API_KEY"] == "right"


def test_the_tokenizer_is_that_of_the_models_folder(tokenizer_dir: Path, encoding: Any) -> None:  # noqa: ANN401
    with standing_in("vllm", root=str(tokenizer_dir), tokenizes=encoding) as server:
        engine = found(f"{server.url}/v1/", slots=4)
    assert engine.tokenizer == tokenizer_dir
    assert engine.check.status == "ok"
    assert engine.settings["LONGBATCH_ENGINE__URL"] == server.url
    assert engine.settings["LONGBATCH_TOKENIZER__PATH"] == str(tokenizer_dir)
    assert engine.settings["LONGBATCH_ENGINE__MAX_SEQ_LEN"] == "4096"
    assert engine.defaults["LONGBATCH_BATCHES__DEFAULT_MAX_TOKENS"] == "1024"
    assert "MAX_BLOCKS" not in str(engine.settings), "the server reports them, and may change them"
    assert engine.words() == (
        f"{server.url}: vllm serves served; context 4,096 tokens, 4 slots, KV cache 1,600 tokens;"
        f" tokenizer {tokenizer_dir} (the same tokens as the engine's)"
    )


@pytest.mark.parametrize(("constant", "kept"), [(521, "10"), (0, None), (4, "4")])
def test_the_blocks_that_a_sequence_keeps_follow_from_the_models_config(
    *, constant: int, kept: str | None, tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tokenizer_dir, tmp_path / "model")
    config = {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_attention_heads": 64, "head_dim": 64}
    layers = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | layers))
    concurrency = 1000 / (4096 // 16 + constant)
    labels = f'block_size="16",num_gpu_blocks="1000",kv_cache_size_tokens="{int(concurrency * 4096)}"'
    labels += f',kv_cache_max_concurrency="{concurrency}"'
    monkeypatch.setitem(METRICS, "vllm", f'vllm:cache_config_info{{engine="0",{labels}}} 1\n')
    with standing_in("vllm", root=str(tmp_path / "model")) as server:
        settings = found(server.url, slots=4, tokenizer=str(tokenizer_dir)).settings
    assert settings.get("LONGBATCH_ENGINE__BLOCKS_PER_SEQUENCE") == kept


def test_the_tokenizer_is_found_in_the_hugging_face_cache(
    tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "models--acme--small"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    (model / "snapshots").mkdir()
    (model / "snapshots" / "abc").symlink_to(tokenizer_dir)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with standing_in("vllm", models=("alias",), root="acme/small") as server:
        assert found(server.url, slots=4).tokenizer == model / "snapshots" / "abc"


def test_no_engine_over_http_gets_the_bundled_tokenizer() -> None:
    with standing_in("vllm", models=("acme/unknown",)) as server:
        assert refusal(server.url, slots=4) == (
            f"{server.url} serves acme/unknown, and its tokenizer is not on this machine: name the model's"
            " directory, or one with its tokenizer.json and tokenizer_config.json, with"
            " --engine-tokenizer DIR."
        )


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with standing_in("vllm") as server:
        for given in (tmp_path, tmp_path / "missing"):
            said = refusal(server.url, slots=4, tokenizer=str(given))
            assert said.startswith(
                f"There is no tokenizer at {given}: name the served model's directory with"
            )


def test_another_tokenizer_than_the_engines_is_refused(tokenizer_dir: Path, encoding: Any) -> None:  # noqa: ANN401
    with standing_in("vllm", tokenizes=lambda text: [*encoding(text), 5]) as server:
        said = refusal(server.url, slots=4, tokenizer=str(tokenizer_dir))
    assert re.fullmatch(
        rf"{server.url} serves served with another tokenizer than {tokenizer_dir}"
        r" \(the server's gives \d+ tokens where ours gives \d+, or others\): name the served model's with"
        r" --engine-tokenizer DIR\.",
        said,
    )


def test_several_engines_are_named_after_their_addresses_and_share_a_tokenizer(
    tokenizer_dir: Path,
    encoding: Any,  # noqa: ANN401
) -> None:
    with (
        standing_in("vllm", root=str(tokenizer_dir), tokenizes=encoding, models=("one",)) as first,
        standing_in("vllm", tokenizes=encoding, models=("two",)) as second,
        standing_in("vllm", tokenizes=lambda _: [1], models=("three",)) as third,
    ):
        engines = find_engines(EngineUrls(urls=(first.url, second.url), slots=4), os.environ)
        said = refusal(first.url, third.url, slots=4)
    assert [each.settings["LONGBATCH_ENGINE__NAME"] for each in engines] == [
        f"{LOOPBACK}:{first.port}",
        f"{LOOPBACK}:{second.port}",
    ]
    assert [each.settings["LONGBATCH_ENGINE__MODEL"] for each in engines] == ["one", "two"]
    assert {each.tokenizer for each in engines} == {tokenizer_dir}
    assert said.startswith(f"{third.url} serves three with another tokenizer than {tokenizer_dir}: start one")


def test_llama_cpp_is_found_with_its_context_slots_and_the_tokenizer_of_its_file(tmp_path: Path) -> None:
    with running_llama(tmp_path, context=512) as server:
        engine = found(server.url)
        assert engine.engine.kind == "llama.cpp"
        assert engine.engine.model == server.model.gguf.path.name
        assert engine.check.status == "ok"
    assert engine.engine.capacity is not None
    assert (engine.engine.capacity.max_batch_size, engine.engine.capacity.max_seq_len) == (1, 512)
    assert float(engine.defaults["LONGBATCH_ENGINE__TIME_SCALE"]) < 1


def test_llama_cpp_with_several_slots_and_a_key_asks_for_what_it_does_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_llama(tmp_path, context=256, slots=2, api_key="right") as server:
        assert f"{server.url} needs a key" in refusal(server.url)
        monkeypatch.setenv("LONGBATCH_ENGINE__API_KEY", "right")
        said = refusal(server.url)
        assert "add --engine-kv-tokens N (tokens of its KV cache); with several slots" in said
        assert "--engine-slots" not in said
        engine = found(server.url, kv_tokens=512)
    assert engine.settings["LONGBATCH_ENGINE__MAX_BLOCKS"] == "16"
