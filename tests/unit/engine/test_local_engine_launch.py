"""How the local engine's server is started, and what is said when it cannot be."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.stack.ports import free_port
from cli.stack.servers.engine_options import A6000, H200, EngineOptions
from cli.stack.servers.triton_server import (
    TritonLaunch,
    TritonUnavailableError,
    find_libpython,
    is_ready,
    prepare,
)

SYNTHETIC = EngineOptions(mode="synthetic")


def prepared(directory: Path, options: EngineOptions = SYNTHETIC) -> TritonLaunch:
    return prepare(
        directory, engine=options, grpc_port=free_port(), http_port=free_port(), metrics_port=free_port()
    )


def test_a_server_listens_on_the_loopback_address_alone(tmp_path: Path) -> None:
    flags = [flag for flag in prepared(tmp_path).argv if "address" in flag]
    assert flags == ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"]


def test_keepalive_pings_are_allowed_every_five_seconds(tmp_path: Path) -> None:
    argv = prepared(tmp_path).argv
    assert "--grpc-http2-min-recv-ping-interval-without-data=5000" in argv
    assert "--grpc-keepalive-permit-without-calls=1" in argv
    assert "--grpc-keepalive-time=10000" in argv
    assert "--grpc-keepalive-timeout=5000" in argv


def test_the_interpreters_own_folder_is_first_on_path(tmp_path: Path) -> None:
    launch = prepared(tmp_path)
    assert launch.env["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert not [name for name in launch.env if name in {"PYTHONHOME", "PYTHONPATH"}]


def test_preparing_again_leaves_nothing_of_the_last_time(tmp_path: Path) -> None:
    prepared(tmp_path)
    stale = tmp_path / "models" / "tensorrt_llm" / "1" / "stale.py"
    stale.touch()
    prefix = (tmp_path / "shm-prefix").read_text()
    region = Path("/dev/shm") / f"{prefix}left-behind"  # noqa: S108 where Linux keeps it
    region.touch()
    second = prepared(tmp_path)
    assert not stale.exists()
    assert not region.exists()
    assert second.shm_prefix != prefix


def test_the_engines_description_is_where_the_model_says(tmp_path: Path) -> None:
    prepared(tmp_path, replace(SYNTHETIC, max_batch_size=7, tokens_per_block=32))
    config = (tmp_path / "models" / "tensorrt_llm" / "config.pbtxt").read_text()
    assert "max_batch_size: 7" in config
    assert str(tmp_path / "engine") in config
    build = json.loads((tmp_path / "engine" / "config.json").read_text())["build_config"]
    assert (build["max_batch_size"], build["plugin_config"]["tokens_per_block"]) == (7, 32)
    assert "${" not in config


def test_responses_are_gathered_only_where_time_runs_fast() -> None:
    def gathered(options: EngineOptions) -> str:
        return options.local_parameters()["local_tokens_per_response"]

    assert gathered(SYNTHETIC) == gathered(replace(SYNTHETIC, time_scale=3.0)) == "1"
    assert gathered(replace(SYNTHETIC, time_scale=3.1)) == "8"
    assert gathered(replace(SYNTHETIC, time_scale=50, tokens_per_response=2)) == "2"


def test_the_gpus_cost_what_their_data_sheets_say() -> None:
    assert A6000.iteration == pytest.approx(16.06e9 / (768e9 * 0.85), rel=0.001)
    assert H200.prefill_token < A6000.prefill_token / 5


@pytest.mark.parametrize(
    "wrong",
    [{"mode": "extractive"}, {"mode": "oracle"}, {"time_scale": 0}, {"tokenizer_dir": Path("/nowhere")}],
)
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"tokenizer|time_scale"):
        EngineOptions(**{"mode": "synthetic"} | wrong)


def test_a_missing_libpython_is_reported_with_the_package_to_install() -> None:
    with pytest.raises(TritonUnavailableError, match=r"libpython3\.99\.so\.1\.0 .* package libpython3\.99"):
        find_libpython("3.99")


def test_nothing_listening_is_not_ready() -> None:
    assert not is_ready(free_port())
