"""A worker that is started with the settings of a profile serves jobs."""

import os
import subprocess
from pathlib import Path

import pytest

from cli.engine import profile, render
from cli.stack.ports import LOOPBACK
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import settings
from jobs.models.engine import Engine as EngineRow
from jobs.prompts.tokenizer import ensure_default_tokenizer
from jobs.settings import DatabaseSettings, Settings
from local_engine import RunningEngine
from worker_support import MODEL, Queue, WorkerProcess


def sourced(folder: Path, data: Path) -> dict[str, str]:
    """The variables of worker.env, as its first lines say to read it."""
    script = f"set -a; DATA={data}; . {folder}/worker.env; env -0"
    bash = ["/bin/bash", "-c", script]
    found = subprocess.run(bash, env={}, capture_output=True, text=True, check=True).stdout
    return dict(line.split("=", 1) for line in found.split("\0") if line.startswith("LONGBATCH_"))


def settings_of(
    variables: dict[str, str], engine: RunningEngine, monkeypatch: pytest.MonkeyPatch, **urls: str
) -> Settings:
    """The settings that a process with this environment has, with the ports of this engine."""
    for name in [name for name in os.environ if name.startswith("LONGBATCH_") and "__" in name]:
        monkeypatch.delenv(name)
    here = {
        "LONGBATCH_TRITON__URL": f"{LOOPBACK}:{engine.launch.grpc_port}",
        "LONGBATCH_TRITON__HTTP_URL": f"http://{LOOPBACK}:{engine.launch.http_port}",
        "LONGBATCH_TRITON__METRICS_URL": f"http://{LOOPBACK}:{engine.launch.metrics_port}/metrics",
    }
    assert set(here) <= set(variables)
    for name, value in (variables | here | urls).items():
        monkeypatch.setenv(name, value)
    return settings.load()


def test_a_worker_with_a_profile_s_settings_finds_its_engine_and_serves_it(
    queue: Queue,
    synthetic: RunningEngine,
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    made = profile.load("llama-3.1-8b-a6000")
    served = made.model.model_copy(update={"served_name": MODEL})  # what the test's jobs ask for
    render.write(render.render(made.model_copy(update={"model": served})), tmp_path / "out")
    (tmp_path / "data" / "models").mkdir(parents=True)
    (tmp_path / "data" / "models" / "Llama-3.1-8B-Instruct").symlink_to(ensure_default_tokenizer())
    found = settings_of(
        sourced(tmp_path / "out", tmp_path / "data"),
        synthetic,
        monkeypatch,
        LONGBATCH_DATABASE__URL=database_settings.url.get_secret_value(),
        LONGBATCH_BROKER__URL=valkey.url,
    )
    worker = WorkerProcess("inference", found, tmp_path / "worker.log")
    try:
        job = queue.ended(queue.submit("Job.", max_tokens=20))
        assert (job.state, job.completion_tokens) == ("completed", 20)
        with queue.sessions() as session:
            row = session.get_one(EngineRow, made.name)
            assert (row.max_batch_size, row.max_blocks, row.tokens_per_block) == (4, 2048, 64)
            assert (row.max_input_len, row.max_seq_len) == (96_000, 131_072)
    finally:
        worker.end()
