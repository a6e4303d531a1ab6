"""A profile that is served as Triton's model llmapi: its model.yaml, its launch, and what it cannot serve.

Names are those of LlmArgs of TensorRT-LLM 1.1 to 1.2, read there and not run.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.engine import drift, profile, render
from cli.engine.profile import PROFILES, Profile
from longbatch.cli.main import application

LLMAPI = profile.load("llama-3.1-8b-h100-llmapi")
# The fields of LlmArgs and of its parts that a profile could fill; all others would be refused at load.
ARGUMENTS = set(
    """
    model backend tensor_parallel_size pipeline_parallel_size gpus_per_node max_batch_size max_num_tokens
    max_seq_len enable_chunked_prefill stream_interval scheduler_config kv_cache_config speculative_config
    """.split()  # noqa: SIM905  # read as one line of names
)
CACHE = set(
    """
    max_tokens tokens_per_block free_gpu_memory_fraction enable_block_reuse dtype host_cache_size
    """.split()  # noqa: SIM905
)


def changed(**groups: dict[str, Any]) -> Profile:
    content = LLMAPI.model_dump()
    for name, fields in groups.items():
        content[name] = (content[name] or {}) | fields
    return Profile.model_validate(content)


def model_yaml(made: Profile) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(render.render(made)["model.yaml"])
    return found


def test_the_model_s_arguments_say_what_the_profile_does_by_names_that_exist() -> None:
    found = model_yaml(LLMAPI)
    # Of the model of Triton, not of LlmArgs: without decoupled it cannot stream.
    assert found.pop("triton_config") == {"max_batch_size": 0, "decoupled": True}
    assert set(found) <= ARGUMENTS
    assert set(found["kv_cache_config"]) <= CACHE
    assert found["model"] == "/data/models/Llama-3.1-8B-Instruct"
    assert found["max_batch_size"] == 8
    assert found["kv_cache_config"]["max_tokens"] == 393_216
    assert found["kv_cache_config"]["tokens_per_block"] == 32
    assert found["enable_chunked_prefill"] is True
    assert found["stream_interval"] == 10  # whole texts at every token would be quadratic
    assert found["scheduler_config"] == {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"}


def test_gpus_machines_drafts_and_host_memory_reach_the_model_s_arguments() -> None:
    made = changed(
        gpu={"count": 16, "pipeline": 2, "nodes": 2},
        engine={"host_cache_gib": 4},
        precision={"kv_cache": "fp8"},
        speculative={"max_draft_len": 4, "draft_repository": "meta-llama/Llama-3.2-1B-Instruct"},
    )
    found = model_yaml(made)
    assert (found["tensor_parallel_size"], found["pipeline_parallel_size"], found["gpus_per_node"]) == (
        8,
        2,
        8,
    )
    assert found["kv_cache_config"]["host_cache_size"] == 4 * 2**30
    assert found["kv_cache_config"]["dtype"] == "fp8"
    assert found["speculative_config"] == {
        "decoding_type": "DraftTarget",
        "max_draft_len": 4,
        "speculative_model_dir": "/data/models/Llama-3.2-1B-Instruct",
    }
    assert set(found) - {"triton_config"} <= ARGUMENTS


def test_only_a_built_engine_is_served_without_auto_complete() -> None:
    assert "--disable-auto-complete-config" not in render.render(LLMAPI)["serve.sh"]
    built = render.render(profile.load("llama-3.1-8b-h100"))
    assert "--disable-auto-complete-config" in built["serve.sh"]
    assert {"convert.sh", "build.sh"} <= set(built)
    assert not {"convert.sh", "build.sh", "fill/tensorrt_llm"} & set(render.render(LLMAPI))


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        ({}, "mpirun --allow-run-as-root -n 1 tritonserver --model-repository=/models"),
        ({"SLURM_PROCID": "3"}, "trtllm-llmapi-launch tritonserver --model-repository=/models"),
    ],
)
def test_one_server_starts_its_own_ranks_or_is_one_of_those_that_slurm_started(
    environment: dict[str, str], command: str, tmp_path: Path
) -> None:
    render.write(render.render(LLMAPI), tmp_path / "out")
    for name in ("mpirun", "trtllm-llmapi-launch"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    said = subprocess.run(
        [str(shutil.which("bash")), str(tmp_path / "out" / "serve.sh")],
        env={"PATH": str(tmp_path)} | environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.startswith(command)


def test_its_rendered_scripts_are_clean_to_shellcheck(tmp_path: Path) -> None:
    render.write(render.render(changed(gpu={"devices": (1,)})), tmp_path / "out")
    scripts = [*(tmp_path / "out").glob("*.sh"), tmp_path / "out" / "slurm.sbatch"]
    tool = Path(sys.executable).parent / "shellcheck"
    found = subprocess.run([str(tool), *map(str, scripts)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_its_own_gpus_are_given_to_the_container_as_it_has_no_parameter_for_them() -> None:
    script = render.render(changed(gpu={"devices": (1, 3), "count": 2}))["docker.sh"]
    assert '--gpus "${GPUS:-\\"device=1,3\\"}"' in script


def test_a_worker_is_told_the_capacity_that_llmapi_has_no_gauges_for() -> None:
    settings = render.render(LLMAPI)["worker.env"].splitlines()
    assert "LONGBATCH_ENGINE__MAX_BLOCKS=12288" in settings
    assert "LONGBATCH_ENGINE__TOKENS_PER_BLOCK=32" in settings
    assert "LONGBATCH_ENGINE__MAX_BATCH_SIZE=8" in settings


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"precision": {"weights": "int8"}}, "llmapi serves no int8"),
        ({"speculative": {"max_draft_len": 4, "draft_model": "draft"}}, "draft_repository must name"),
        (
            {"image": {"flow": "build"}, "speculative": {"max_draft_len": 4, "draft_repository": "a/b"}},
            "draft_model must name",
        ),
    ],
)
def test_what_a_flow_cannot_serve_is_refused(groups: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        changed(**groups)


def test_the_image_s_model_is_set_up_and_checked_by_its_model_yaml(tmp_path: Path) -> None:
    template = tmp_path / "app/all_models/llmapi/tensorrt_llm"
    (template / "1").mkdir(parents=True)
    (template / "config.pbtxt").write_text('name: "tensorrt_llm"\nbackend: "python"\n')
    for name in ("model.py", "model.yaml"):
        (template / "1" / name).write_text("# the image's own\n")
    (tmp_path / "models").mkdir()
    made = changed(model={"triton_name": "second"})
    render.write(render.render(made), tmp_path / "rendered")
    subprocess.run(
        [str(PROFILES.parent / "in_image.sh"), "repository"],
        env={"PATH": "/usr/bin:/bin", "ROOT": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    assert (tmp_path / "models/second/config.pbtxt").read_text().startswith('name: "second"')
    assert (tmp_path / "models/second/1/model.py").read_text() == "# the image's own\n"
    assert drift.find(made, tmp_path / "models") == []
    other = changed(model={"triton_name": "second"}, engine={"max_batch_size": 4, "kv_cache_tokens": 262_144})
    assert [each.sentence() for each in drift.find(other, tmp_path / "models")] == [
        "second/1/model.yaml: max_batch_size is 8, the profile says 4",
        "second/1/model.yaml: kv_cache_config.max_tokens is 393216, the profile says 262144",
    ]


def test_other_models_than_llama_are_rendered_for_llmapi_alone(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    sizes = {"num_hidden_layers": 26, "hidden_size": 2304, "intermediate_size": 9216}
    config.write_text(json.dumps({"model_type": "gemma3_text"} | sizes))
    text = (PROFILES / "llama-3.1-8b-h100.toml").read_text().replace('shape = "llama-3.1-8b"', "")
    (tmp_path / "mine.toml").write_text(text)
    command = [
        "engine",
        "render",
        str(tmp_path / "mine.toml"),
        str(tmp_path / "out"),
        "--config",
        str(config),
    ]
    answer = CliRunner().invoke(application(), command)
    assert answer.exit_code == 2
    assert 'set image.flow = "llmapi"' in answer.output
    (tmp_path / "mine.toml").write_text(f'{text}flow = "llmapi"\n')
    assert CliRunner().invoke(application(), command).exit_code == 0


def test_nothing_is_built_for_it(tmp_path: Path) -> None:
    render.write(render.render(LLMAPI), tmp_path / "out")
    answer = subprocess.run(
        [str(PROFILES.parent / "build_engine.sh"), str(tmp_path / "out"), str(tmp_path / "data")],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "nothing to build" in answer.stderr
