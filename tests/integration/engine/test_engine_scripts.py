"""The scripts beside the profiles: clean to shellcheck, clear about what is missing, safe to run again."""

import fcntl
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.engine import drift, pbtxt, profile, render, values
from cli.engine.profile import PROFILES
from cli.engine.profile_groups import GpuGroup

SCRIPTS = PROFILES.parent
SETUP_SCRIPTS = SCRIPTS.parent / "scripts"
A6000 = profile.load("llama-3.1-8b-a6000")
MODELS = values.model_names(A6000)
# What the scripts use of a bare machine; neither Docker nor a driver is among it.
TOOLS = """
    awk basename bash cat cp dirname env find grep head id mkdir mktemp mv rm sed sleep sort tail wc
""".split()  # noqa: SIM905  # read as one line of commands


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A PATH of a machine without Docker, driver, Slurm and curl."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(str(shutil.which(tool)))
    # Not by a link: the interpreter finds its home by its own path.
    program(folder, "python3", f'exec "{sys.executable}" "$@"')
    return folder


@pytest.fixture
def rendered(tmp_path: Path) -> Path:
    render.write(render.render(A6000), tmp_path / "rendered")
    return tmp_path / "rendered"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with a whole model."""
    folder = tmp_path / "data" / "models" / "Llama-3.1-8B-Instruct"
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model-1-of-2.safetensors", "model-2-of-2.safetensors"):
        (folder / name).write_text("{}")
    index = '{"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}'
    (folder / "model.safetensors.index.json").write_text(index)
    return tmp_path / "data"


def run(
    path: Path, script: str, *arguments: object, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """A script of ours with nothing on its PATH but this folder."""
    return subprocess.run(
        [str(path / "bash"), str(SCRIPTS / script), *map(str, arguments)],
        env={"PATH": str(path), "HOME": str(path)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def words_of(failed: "subprocess.CompletedProcess[str]") -> str:
    assert failed.returncode == 1, failed.stderr
    assert "line " not in failed.stderr, failed.stderr  # no error of the shell itself
    return failed.stderr


def program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def shellcheck(*files: Path) -> None:
    tool = Path(sys.executable).parent / "shellcheck"
    found = subprocess.run([str(tool), *map(str, files)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_our_scripts_are_clean_to_shellcheck() -> None:
    shellcheck(*SCRIPTS.glob("*.sh"), *SETUP_SCRIPTS.glob("*.sh"))


@pytest.mark.parametrize(
    ("where", "script"), [("/", None), (".", "scripts/"), ("scripts", ""), ("bin", "../scripts/")]
)
def test_a_setup_script_works_on_its_own_repository_wherever_it_is_called_from(
    where: str, script: str | None, bare: Path, tmp_path: Path
) -> None:
    shutil.copytree(SETUP_SCRIPTS, tmp_path / "scripts")
    (tmp_path / "CDPATH" / "scripts").mkdir(parents=True)
    name = "setup_torch.sh"
    asked = subprocess.run(
        [str(bare / "bash"), str(tmp_path / "scripts" / name) if script is None else f"{script}{name}"],
        cwd=tmp_path / where,
        env={"PATH": str(bare), "CDPATH": str(tmp_path / "CDPATH")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == "setup: run make setup first.\n"


def test_two_setups_in_one_repository_run_one_after_the_other(bare: Path, tmp_path: Path) -> None:
    shutil.copytree(SETUP_SCRIPTS, tmp_path / "scripts")
    (bare / "flock").symlink_to(str(shutil.which("flock")))
    first = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    with subprocess.Popen(
        [str(bare / "bash"), str(tmp_path / "scripts" / "setup_torch.sh")],
        env={"PATH": str(bare)},
        stderr=subprocess.PIPE,
        text=True,
    ) as second:
        assert second.stderr is not None
        assert second.stderr.readline() == "setup: waiting for another one in this folder\n"
        os.close(first)
        assert second.stderr.read() == "setup: run make setup first.\n"


@pytest.mark.parametrize("name", ["llama-3.1-8b-a6000", "llama-3.1-8b-a6000x2"])
def test_rendered_scripts_are_clean_to_shellcheck(name: str, tmp_path: Path) -> None:
    render.write(render.render(profile.load(name)), tmp_path)
    shellcheck(*tmp_path.glob("*.sh"), tmp_path / "slurm.sbatch")


@pytest.mark.parametrize(
    "script", ["fetch_model.sh", "build_engine.sh", "make_repository.sh", "launch.sh", "in_image.sh"]
)
def test_a_script_without_arguments_says_how_it_is_used(script: str, bare: Path, rendered: Path) -> None:
    answer = run(bare, script, ROOT=str(rendered.parent))
    assert answer.returncode == 2
    assert script in answer.stdout


def test_a_folder_that_was_not_rendered_is_named(bare: Path, tmp_path: Path) -> None:
    assert "render a profile first" in words_of(run(bare, "build_engine.sh", tmp_path, tmp_path))


def test_a_missing_token_is_reported_with_the_model_that_wants_it(
    bare: Path, rendered: Path, tmp_path: Path
) -> None:
    told = words_of(run(bare, "fetch_model.sh", rendered, tmp_path / "data"))
    assert "no Hugging Face token" in told
    assert "meta-llama/Llama-3.1-8B-Instruct" in told


def test_a_token_is_never_printed(bare: Path, rendered: Path, tmp_path: Path) -> None:
    answer = run(bare, "fetch_model.sh", rendered, tmp_path / "data", HF_TOKEN="hf_verysecret")
    assert "docker is not installed" in words_of(answer)
    assert "verysecret" not in answer.stdout + answer.stderr


def test_a_model_that_is_there_needs_no_token_and_no_network(bare: Path, rendered: Path, data: Path) -> None:
    assert run(bare, "fetch_model.sh", rendered, data).returncode == 0


def test_a_model_with_a_part_missing_is_fetched_on(bare: Path, rendered: Path, data: Path) -> None:
    (data / "models/Llama-3.1-8B-Instruct/model-2-of-2.safetensors").unlink()
    assert "no Hugging Face token" in words_of(run(bare, "fetch_model.sh", rendered, data))
    program(
        bare, "hf", f'for at; do case $at in {data}/*) echo w > "$at/model-2-of-2.safetensors";; esac; done'
    )
    assert run(bare, "fetch_model.sh", rendered, data, HF_TOKEN="hf_x").returncode == 0


def test_an_engine_is_not_built_without_its_model(bare: Path, rendered: Path, tmp_path: Path) -> None:
    assert "run fetch_model.sh" in words_of(run(bare, "build_engine.sh", rendered, tmp_path / "none"))


def test_a_missing_driver_is_reported(bare: Path, rendered: Path, data: Path) -> None:
    assert "no NVIDIA driver" in words_of(run(bare, "build_engine.sh", rendered, data))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('echo "NVIDIA-SMI has failed because it could not talk to the driver."; exit 9', "does not answer"),
        ('echo "24576, 8.6, 590.44.01"', "needs 1 GPU with 28119 MiB; 0 of 1 have as much"),
    ],
)
def test_a_driver_that_fails_and_a_gpu_that_is_too_small_are_reported(
    bare: Path, rendered: Path, data: Path, answer: str, words: str
) -> None:
    program(bare, "nvidia-smi", answer)
    assert words in words_of(run(bare, "build_engine.sh", rendered, data))


def test_another_kind_of_gpu_is_reported_and_not_refused(bare: Path, rendered: Path, data: Path) -> None:
    program(bare, "nvidia-smi", 'echo "143771, 9.0, 590.44.01"')  # as an H200 answers
    told = words_of(run(bare, "build_engine.sh", rendered, data))
    assert "plans for sm86, this GPU is sm90" in told
    assert "docker is not installed" in told


def test_a_driver_that_is_too_old_for_the_image_is_refused_with_the_images_that_would_do(
    bare: Path, rendered: Path, served: Path
) -> None:
    newer = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    for script in ("build_engine.sh", "launch.sh"):
        told = words_of(run(bare, script, rendered, served, TRITON_IMAGE=newer))
        assert told.strip() == (
            f"{script}: the image 26.07 needs NVIDIA driver 590.44.01 or newer, and this machine has"
            " 570.124.06: install a newer driver, or set TRITON_IMAGE to an image from 25.01 to 25.05"
        )
    assert not (served / "calls").exists()


def test_a_data_center_card_with_an_older_driver_is_reported_and_not_refused(
    bare: Path, rendered: Path, served: Path
) -> None:
    settings = rendered / "engine.env"
    settings.write_text(settings.read_text().replace("WORKSTATION=yes", "WORKSTATION=no"))
    answer = run(bare, "launch.sh", rendered, served, TRITON_IMAGE="tritonserver:25.11-trtllm-python-py3")
    assert answer.returncode == 0, answer.stderr
    assert "needs NVIDIA driver 580.95.05 or newer" in answer.stderr
    assert "forward compatibility" in answer.stderr


@pytest.mark.parametrize(
    "image", ["mine/triton:latest", "nvcr.io/nvidia/tritonserver:99.01-trtllm-python-py3"]
)
def test_an_image_of_unknown_needs_is_not_held_to_a_driver(
    bare: Path, rendered: Path, served: Path, image: str
) -> None:
    answer = run(bare, "launch.sh", rendered, served, TRITON_IMAGE=image)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_a_missing_docker_is_reported(bare: Path, rendered: Path, tmp_path: Path) -> None:
    assert "docker is not installed" in words_of(run(bare, "make_repository.sh", rendered, tmp_path / "data"))


@pytest.mark.skipif(shutil.which("docker") is None, reason="there is no docker command")
def test_a_docker_without_daemon_is_reported(bare: Path, rendered: Path, tmp_path: Path) -> None:
    (bare / "docker").symlink_to(str(shutil.which("docker")))
    nowhere = f"unix://{tmp_path}/docker.sock"
    answer = run(bare, "make_repository.sh", rendered, tmp_path / "data", DOCKER_HOST=nowhere)
    assert "Docker daemon does not answer" in words_of(answer)


def test_launching_reports_which_stage_is_missing(bare: Path, rendered: Path, data: Path) -> None:
    assert "run build_engine.sh" in words_of(run(bare, "launch.sh", rendered, data))
    engine = data / "engines/llama-3.1-8b-a6000-int8"
    engine.mkdir(parents=True)
    (engine / "config.json").write_text("{}")
    assert "built for 0 GPU, the profile has 1" in words_of(run(bare, "launch.sh", rendered, data))
    (engine / "rank0.engine").write_text("")
    assert "run make_repository.sh" in words_of(run(bare, "launch.sh", rendered, data))
    for model in MODELS:
        (data / "repository" / model).mkdir(parents=True)
        (data / "repository" / model / "config.pbtxt").write_text("")
    assert "no NVIDIA driver" in words_of(run(bare, "launch.sh", rendered, data))
    assert "sbatch is not on the PATH" in words_of(run(bare, "launch.sh", rendered, data, "slurm"))


@pytest.fixture
def served(bare: Path, data: Path) -> Path:
    """All that launching asks for, with a docker and a sbatch that print how they were called."""
    engine = data / "engines/llama-3.1-8b-a6000-int8"
    engine.mkdir(parents=True)
    (engine / "config.json").write_text("{}")
    (engine / "rank0.engine").write_text("")
    for model in MODELS:
        (data / "repository" / model).mkdir(parents=True)
        (data / "repository" / model / "config.pbtxt").write_text(render.config_text(A6000, model))
    program(bare, "nvidia-smi", 'echo "49140, 8.6, 570.124.06"')
    program(bare, "docker", f'[ "$1" != run ] || echo "$@" >> "{data}/calls"')
    program(bare, "sbatch", f'echo sbatch "$@" >> "{data}/calls"')
    return data


def test_a_container_runs_in_front_or_detached_and_then_comes_back(
    bare: Path, rendered: Path, served: Path
) -> None:
    assert run(bare, "launch.sh", rendered, served).returncode == 0
    answer = run(bare, "launch.sh", rendered, served, DETACH="1")
    assert answer.returncode == 0
    assert "docker logs -f llama-3.1-8b-a6000" in answer.stderr
    front, detached = (served / "calls").read_text().splitlines()
    assert "run --rm --init" in front
    assert "run --detach --restart unless-stopped --init" in detached
    assert all("nvcr.io/nvidia/tritonserver:25.05-trtllm-python-py3" in each for each in (front, detached))


def test_several_engines_are_not_served_while_one_names_no_gpus_of_its_own(
    bare: Path, rendered: Path, served: Path
) -> None:
    told = words_of(run(bare, "launch.sh", rendered, served, MULTI_MODEL="1"))
    assert "tensorrt_llm names no GPUs of its own: set gpu.devices" in told
    config = served / "repository/tensorrt_llm/config.pbtxt"
    place = 'parameters: {\n  key: "gpu_device_ids"\n  value: {\n    string_value: "0"\n  }\n}\n'
    config.write_text(config.read_text() + place)
    assert run(bare, "launch.sh", rendered, served, MULTI_MODEL="1").returncode == 0


def test_several_machines_are_launched_by_slurm_alone(bare: Path, rendered: Path, served: Path) -> None:
    settings = rendered / "engine.env"
    settings.write_text(settings.read_text().replace("NODES=1", "NODES=2"))
    assert "needs 2 machines: launch it with slurm" in words_of(run(bare, "launch.sh", rendered, served))
    assert run(bare, "launch.sh", rendered, served, "slurm").returncode == 0
    assert "sbatch --export=ALL slurm.sbatch" in (served / "calls").read_text()


@dataclass(frozen=True)
class Image:
    """A folder laid out as NVIDIA's image is, with programs that leave traces in place of the real ones."""

    root: Path
    path: Path

    def run(self, stage: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return run(self.path, "in_image.sh", stage, ROOT=str(self.root), **environment)

    def calls(self) -> list[str]:
        log = self.root / "calls"
        return log.read_text().split() if log.is_file() else []


_FILL = """import sys
from string import Template
import re
path = sys.argv[2]
pairs = dict(re.sub(r"\\\\(.)", r"\\1", pair).split(":") for pair in re.split(r"(?<!\\\\),", sys.argv[3]))
text = open(path).read()
assert all(key in text for key in pairs)
open(path, "w").write(Template(text).safe_substitute(pairs))
"""


@pytest.fixture
def image(bare: Path, rendered: Path) -> Image:
    root = rendered.parent
    examples = root / "app/examples/models/core/llama"
    examples.mkdir(parents=True)
    made = f"import os, sys; os.makedirs(sys.argv[-1]); open('{root}/calls', 'a').write('convert ')"
    (examples / "convert_checkpoint.py").write_text(made)
    program(bare, "trtllm-build", f'for out; do :; done; mkdir "$out"; echo build >> "{root}/calls"')
    (root / "app/tools").mkdir()
    (root / "app/tools/fill_template.py").write_text(_FILL)
    templates = root / "app/all_models/inflight_batcher_llm"
    shutil.copytree(render.TEMPLATES, templates)
    for model in MODELS:
        (templates / model / "1").mkdir()
        (templates / model / "1" / "model.py").write_text("# the image's own")
    (root / "models").mkdir()
    return Image(root, bare)


def test_stages_are_made_once(image: Image) -> None:
    assert "in_image.sh convert" in words_of(image.run("build"))
    for _ in range(2):
        for stage in ("convert", "build"):
            answer = image.run(stage)
            assert answer.returncode == 0, answer.stderr
    assert image.calls() == ["convert", "build"]


def test_another_image_makes_checkpoint_and_engine_anew(image: Image) -> None:
    for stage in ("convert", "build"):
        image.run(stage)
    for stage in ("convert", "build"):
        assert image.run(stage, TRITON_IMAGE="tritonserver:25.12").returncode == 0
    assert image.calls() == ["convert", "build"] * 2


def test_a_changed_profile_makes_the_engine_anew_and_keeps_the_checkpoint(image: Image) -> None:
    for stage in ("convert", "build"):
        image.run(stage)
    longer = A6000.engine.model_copy(update={"max_num_tokens": 8192})
    render.write(render.render(A6000.model_copy(update={"engine": longer})), image.root / "rendered")
    for stage in ("convert", "build"):
        image.run(stage)
    assert image.calls() == ["convert", "build", "build"]


def test_a_stage_that_fails_leaves_what_was_there_and_can_be_run_again(image: Image) -> None:
    image.run("convert")
    program(image.path, "trtllm-build", 'for out; do :; done; mkdir "$out"; exit 3')
    assert "nothing was changed" in words_of(image.run("build"))
    engine = image.root / "data/engines/llama-3.1-8b-a6000-int8"
    assert not engine.exists()
    program(image.path, "trtllm-build", 'for out; do :; done; mkdir "$out"; echo whole > "$out/config.json"')
    assert image.run("build").returncode == 0
    assert (engine / "config.json").read_text() == "whole\n"


def test_an_older_image_s_place_of_the_script_is_found(image: Image) -> None:
    (image.root / "app/examples/llama").parent.mkdir(exist_ok=True)
    (image.root / "app/examples/models/core/llama").rename(image.root / "app/examples/llama")
    assert image.run("convert").returncode == 0
    shutil.rmtree(image.root / "app/examples/llama")
    shutil.rmtree(image.root / "data/checkpoints")
    assert "this image has none of" in words_of(image.run("convert"))


def test_a_repository_from_the_image_s_templates_is_what_the_profile_says(image: Image) -> None:
    for _ in range(2):
        answer = image.run("repository")
        assert answer.returncode == 0, answer.stderr
    assert drift.find(A6000, image.root / "models") == []
    assert sorted(path.name for path in (image.root / "models").iterdir()) == sorted(MODELS)
    assert (image.root / "models/ensemble/1/model.py").is_file()


def test_a_value_that_an_image_does_not_know_is_left_out_unless_it_is_needed(image: Image) -> None:
    template = image.root / "app/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt"
    text = template.read_text()
    template.write_text(text.replace("${prompt_embedding_table_data_type}", "TYPE_FP16"))
    answer = image.run("repository")
    assert answer.returncode == 0
    assert "has no prompt_embedding_table_data_type; left out" in answer.stderr
    template.write_text(text.replace("${enable_chunked_context}", "false"))
    assert "has no enable_chunked_context" in words_of(image.run("repository"))


def test_configurations_of_ours_are_no_longer_taken_for_the_image_s(image: Image) -> None:
    answer = image.run("repository", CONFIGS="rendered")
    assert answer.returncode == 0
    assert "CONFIGS=rendered has no effect any more" in answer.stderr
    assert drift.find(A6000, image.root / "models") == []


def test_an_engine_s_own_gpus_reach_its_model_and_an_image_that_has_no_place_for_them_is_refused(
    image: Image,
) -> None:
    gpu = GpuGroup(kind="a6000", count=2, devices=(1, 3))
    render.write(render.render(A6000.model_copy(update={"gpu": gpu})), image.root / "rendered")
    assert "has no gpu_device_ids" in words_of(image.run("repository"))
    template = image.root / "app/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt"
    place = 'parameters { key: "gpu_device_ids" value { string_value: "${gpu_device_ids}" } }'
    template.write_text(f"{template.read_text()}{place}\n")
    assert image.run("repository").returncode == 0
    made = (image.root / "models/tensorrt_llm/config.pbtxt").read_text()
    assert pbtxt.values(made)["parameters.gpu_device_ids"] == "1,3"


def test_a_second_engine_stands_beside_the_first(image: Image) -> None:
    image.run("repository")
    second = A6000.model.model_copy(update={"triton_name": "second"})
    made = A6000.model_copy(update={"model": second})
    render.write(render.render(made), image.root / "rendered")
    assert image.run("repository").returncode == 0
    assert drift.find(made, image.root / "models") == []
    assert drift.find(A6000, image.root / "models") == []


def test_the_server_is_started_once_per_gpu(bare: Path, tmp_path: Path) -> None:
    """The rendered script, with programs that print how they were called."""
    render.write(render.render(profile.load("llama-3.1-8b-a6000x2")), tmp_path / "two")
    for name in ("mpirun", "tritonserver"):
        program(bare, name, f'echo {name} "$@"')

    def serve(**environment: str) -> list[str]:
        script = tmp_path / "two" / "serve.sh"
        environment = {"PATH": str(bare)} | environment
        found = subprocess.run(
            [str(bare / "bash"), str(script)], env=environment, capture_output=True, text=True, check=True
        )
        return found.stdout.split()

    words = serve()
    assert words[0] == "mpirun"
    assert words.count("tritonserver") == 2
    assert words.count("--load-model=tensorrt_llm") == 1
    assert words.count("--grpc-keepalive-time=10000") == 2
    assert "--load-model=tensorrt_llm" not in serve(SLURM_PROCID="0")
    assert "--load-model=tensorrt_llm" in serve(SLURM_PROCID="1")
    assert serve(SLURM_PROCID="1")[0] == "tritonserver"
    program(bare, "nvidia-smi", "printf 'GPU 0\\nGPU 1\\n'")
    orchestrator = serve(MULTI_MODEL="1")  # spawns its workers itself, for which it needs MPI
    assert orchestrator[0] == "mpirun"
    assert orchestrator.count("tritonserver") == 1
    assert {"--cuda-memory-pool-byte-size=0:0", "--cuda-memory-pool-byte-size=1:0"} <= set(orchestrator)
