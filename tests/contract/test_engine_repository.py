"""What profiles say of a repository, on a real Triton; and a running engine passes the smoke test."""

import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from cli.engine import profile, render, values
from cli.engine.profile import PROFILES
from cli.stack.ports import LOOPBACK
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.triton_server import TritonLaunch
from local_engine import RunningEngine, free_ports, prepared_launch, running_engine, running_server
from support import PATIENCE

A6000 = profile.load("llama-3.1-8b-a6000")
SMOKE = PROFILES.parent / "smoke.sh"
# In place of the image's models: it answers nothing, but it is told its configuration by the server.
STAND_IN = """
class TritonPythonModel:
    def initialize(self, args):
        pass

    def execute(self, requests):
        return [None for _ in requests]
"""


def prepared(folder: Path) -> TritonLaunch:
    """A server that will load what is rendered: with stand-ins, and the engine in the Python backend."""
    launch = prepared_launch(folder, EngineOptions(mode="synthetic"))
    shutil.rmtree(launch.cwd / "models")
    for model in values.model_names(A6000):
        (launch.cwd / "models" / model / "1").mkdir(parents=True)
        (launch.cwd / "models" / model / "config.pbtxt").write_text(render.config_text(A6000, model))
    for config in (launch.cwd / "models").glob("*/config.pbtxt"):
        text = config.read_text()
        config.write_text(text.replace('backend: "tensorrtllm"', 'backend: "python"'))
        if "platform:" not in text:
            (config.parent / "1" / "model.py").write_text(STAND_IN)
    return launch


def get(launch: TritonLaunch, path: str) -> str:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{launch.http_port}{path}", timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
    return text


def smoke(launch: TritonLaunch, *arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The script, against this engine."""
    here = {
        "TRITON_HTTP": f"http://{LOOPBACK}:{launch.http_port}",
        "TRITON_METRICS": f"http://{LOOPBACK}:{launch.metrics_port}/metrics",
    }
    return subprocess.run(
        [str(SMOKE), *map(str, arguments)],
        env={"PATH": os.environ["PATH"]} | here | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_real_server_loads_five_models_that_say_what_the_profile_does(tmp_path: Path) -> None:
    launch = prepared(tmp_path)
    with running_server(launch) as server:
        server.wait_ready()
        for model in ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls"):
            assert f'"name":"{model}"' in get(launch, f"/v2/models/{model}")
        config = get(launch, "/v2/models/tensorrt_llm/config")
        assert '"decoupled":true' in config
        assert '"max_tokens_in_paged_kv_cache":{"string_value":"131072"}' in config


def test_a_real_server_refuses_an_ensemble_that_does_not_fit_its_models(tmp_path: Path) -> None:
    """So the test above says something."""
    launch = prepared(tmp_path)
    config = launch.cwd / "models" / "ensemble" / "config.pbtxt"
    config.write_text(
        config.read_text().replace('key: "sequence_length" value: "_NUM', 'key: "lengths" value: "_NUM')
    )
    with running_server(launch) as server, pytest.raises(AssertionError):
        server.wait_ready()
    assert "lengths" in server.log.read_text()


def test_a_running_engine_passes_the_smoke_test_of_its_profile(tmp_path: Path, tokenizer_dir: Path) -> None:
    options = EngineOptions(tokenizer_dir=tokenizer_dir, time_scale=5, text_models=True)
    render.write(render.render(A6000), tmp_path / "out")
    with running_engine(tmp_path / "engine", options) as engine:
        answer = smoke(engine.launch, tmp_path / "out", PROMPT_TOKENS="20000")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert [line.split(":")[0] for line in answer.stdout.splitlines()] == [
        "✓ health",
        "✓ metadata",
        "✓ short request",
        "✓ long request",
        "✓ cancel",
        "✓ metrics",
        "✓ ensemble",
        "✓ tensorrt_llm_bls",
    ]
    assert "4 slots, 0 requests waiting inside" in answer.stdout


def test_the_smoke_test_reads_the_longest_prompt(tmp_path: Path) -> None:
    with running_engine(tmp_path, EngineOptions(mode="synthetic", time_scale=30)) as engine:
        answer = smoke(engine.launch)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "96000 prompt tokens, 32 tokens" in answer.stdout


def test_the_smoke_test_names_what_is_wrong(loaded: RunningEngine, tmp_path: Path) -> None:
    larger = profile.load("llama-3.1-8b-h200")
    render.write(render.render(larger), tmp_path / "batch")
    assert (
        "✗ metadata: max_batch_size is 4, the profile says 16"
        in smoke(loaded.launch, tmp_path / "batch").stdout
    )
    render.write(render.render(A6000), tmp_path / "text")
    told = smoke(loaded.launch, tmp_path / "text", PROMPT_TOKENS="100").stdout
    assert "✗ ensemble: the profile has it, and it is not ready" in told
    pool = A6000.engine.model_copy(update={"kv_cache_tokens": 262_144})
    render.write(render.render(A6000.model_copy(update={"engine": pool})), tmp_path / "pool")
    told = smoke(loaded.launch, tmp_path / "pool", PROMPT_TOKENS="100").stdout
    assert "✗ metrics: the pool has 2048 blocks, the profile says 4096: it was reduced at load" in told
    assert "✗ long request" in smoke(loaded.launch, PROMPT_TOKENS="140000").stdout
    assert "✗ metadata: no_such" in smoke(loaded.launch, MODEL="no_such", WAIT="0").stdout.replace(
        "health", "metadata"
    )
    assert (
        "was not ready in 0 s"
        in smoke(loaded.launch, TRITON_HTTP=f"http://{LOOPBACK}:{free_ports(1)[0]}", WAIT="0").stdout
    )


def smoke_of_llmapi(folder: Path, options: EngineOptions) -> "subprocess.CompletedProcess[str]":
    render.write(render.render(profile.load("llama-3.1-8b-h100-llmapi")), folder / "out")
    with running_engine(folder / "engine", options) as engine:
        return smoke(engine.launch, folder / "out", PROMPT_TOKENS="2000", MODEL="llmapi")


def test_the_smoke_test_of_llmapi_sends_text(tmp_path: Path, tokenizer_dir: Path) -> None:
    answer = smoke_of_llmapi(tmp_path, EngineOptions(tokenizer_dir=tokenizer_dir, time_scale=40, llmapi=True))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "✓ metadata: llmapi is llmapi and streams" in answer.stdout
    assert "✓ 1000 words: text came in" in answer.stdout


def test_the_smoke_test_refuses_an_llmapi_that_cannot_stream(tmp_path: Path, tokenizer_dir: Path) -> None:
    """As NVIDIA's quick start leaves it."""
    options = EngineOptions(tokenizer_dir=tokenizer_dir, llmapi=True, llmapi_decoupled=False)
    assert "✗ metadata: llmapi is not decoupled" in smoke_of_llmapi(tmp_path, options).stdout
