"""What a profile is rendered to: configurations, commands, settings; and drift from it."""

import contextlib
import os
import shlex
import stat
from difflib import unified_diff
from pathlib import Path
from string import Template

import pytest
import yaml
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2
from typer.testing import CliRunner

from cli.engine import build_commands, drift, llmapi, pbtxt, profile, render, values
from cli.engine.errors import RenderError
from cli.engine.profile import PROFILES, Profile
from jobs import settings
from longbatch.cli.main import application

NAMES = sorted(path.stem for path in PROFILES.glob("*.toml"))
# Of this profile whole, and of every other one what differs from it.
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "engine"
FIRST = "llama-3.1-8b-h100"
A6000 = profile.load("llama-3.1-8b-a6000")
MODELS = ["preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls"]

# What NVIDIA's templates are filled with in the deployment that Longbatch is made for.
FILLED = {
    "tensorrt_llm": {
        "triton_max_batch_size": "4",
        "triton_backend": "tensorrtllm",
        "decoupled_mode": "True",
        "max_beam_width": "1",
        "engine_dir": "/data/engines/llama-3.1-8b-a6000-int8",
        "batching_strategy": "inflight_fused_batching",
        "batch_scheduler_policy": "guaranteed_no_evict",
        "max_tokens_in_paged_kv_cache": "131072",
        "kv_cache_free_gpu_mem_fraction": "0.85",
        "exclude_input_in_output": "True",
        "enable_chunked_context": "True",
        "logits_datatype": "TYPE_FP32",
        "encoder_input_features_data_type": "TYPE_FP16",
        "prompt_embedding_table_data_type": "TYPE_FP16",
    },
    "preprocessing": {
        "triton_max_batch_size": "4",
        "tokenizer_dir": "/data/models/Llama-3.1-8B-Instruct",
        "preprocessing_instance_count": "1",
        "add_special_tokens": "False",
    },
    "postprocessing": {
        "triton_max_batch_size": "4",
        "tokenizer_dir": "/data/models/Llama-3.1-8B-Instruct",
        "postprocessing_instance_count": "1",
    },
    "tensorrt_llm_bls": {
        "triton_max_batch_size": "4",
        "decoupled_mode": "True",
        "bls_instance_count": "4",
        "accumulate_tokens": "False",
        "logits_datatype": "TYPE_FP32",
    },
    "ensemble": {"triton_max_batch_size": "4", "logits_datatype": "TYPE_FP32"},
}


def parsed(text: str) -> model_config_pb2.ModelConfig:
    """The configuration, by Triton's own protobuf."""
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def written(made: Profile, folder: Path) -> Path:
    render.write(render.render(made), folder)
    return folder


def repository_of(made: Profile, folder: Path) -> Path:
    """A model repository as far as the profile sets it, in place of the image's filled-in templates."""
    if made.image.flow == "llmapi":
        (folder / "tensorrt_llm" / "1").mkdir(parents=True)
        (folder / "tensorrt_llm" / "config.pbtxt").write_text("")
        (folder / "tensorrt_llm" / "1" / "model.yaml").write_text(llmapi.model_yaml(made))
        return folder
    for model in values.model_names(made):
        (folder / model / "1").mkdir(parents=True)
        (folder / model / "config.pbtxt").write_text(render.config_text(made, model))
    return folder


def sentences(made: Profile, folder: Path) -> list[str]:
    return [each.sentence() for each in drift.find(made, folder)]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("name", NAMES)
def test_rendering_is_what_it_was(name: str) -> None:
    """UPDATE_GOLDEN=1 writes the files anew, for a change that is meant."""
    text, golden = rendered(name), GOLDEN / f"{name}.txt"
    if name != FIRST:
        first = rendered(FIRST).replace(FIRST, "{profile}")
        changes = unified_diff(lines_of(first), lines_of(text.replace(name, "{profile}")), FIRST, name, n=0)
        text, golden = "".join(changes), GOLDEN / f"{name}.diff"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def rendered(name: str) -> str:
    return "".join(f"==> {path}\n{content}" for path, content in render.render(profile.load(name)).items())


def lines_of(text: str) -> list[str]:
    return text.splitlines(keepends=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_a_configuration_is_one_to_triton_s_protobuf(name: str, model: str) -> None:
    made = profile.load(name)
    found = parsed(render.config_text(made, model))
    assert found.name == model
    assert found.max_batch_size == made.engine.max_batch_size
    assert len({each.name for each in found.input}) == len(found.input) > 0
    assert len({each.name for each in found.output}) == len(found.output) > 0
    assert "${" not in render.config_text(made, model)


def test_the_engine_s_configuration_says_what_the_profile_does() -> None:
    found = parsed(render.config_text(A6000, "tensorrt_llm"))
    assert found.backend == "tensorrtllm"
    assert found.model_transaction_policy.decoupled
    assert found.dynamic_batching.default_queue_policy.max_queue_size == 0
    said = {name: each.string_value for name, each in found.parameters.items()}
    assert said["max_tokens_in_paged_kv_cache"] == "131072"
    assert said["enable_chunked_context"] == "True"
    assert said["batch_scheduler_policy"] == "guaranteed_no_evict"
    assert {"input_ids", "input_lengths", "request_output_len", "streaming", "stop"} <= {
        each.name for each in found.input
    }


@pytest.mark.parametrize("model", MODELS)
def test_every_value_of_the_known_deployment_fills_a_place_in_our_template(model: str) -> None:
    filled = values.fill(A6000, model)
    assert filled.items() >= FILLED[model].items()
    places = set(Template(render.template_text(model)).get_identifiers())
    assert places - {"seed_input", "min_tokens_input"} == set(filled)


def test_the_steps_of_the_ensemble_fit_the_models() -> None:
    configs = {model: parsed(render.config_text(A6000, model)) for model in MODELS}
    whole = configs["ensemble"]
    known = {each.name for each in whole.input}
    for step in whole.ensemble_scheduling.step:
        model = configs[step.model_name]
        inputs = {each.name: each for each in model.input}
        assert set(step.input_map) <= set(inputs)
        assert {each.name for each in model.input if not each.optional} <= set(step.input_map)
        assert set(step.output_map) <= {each.name for each in model.output}
        assert set(step.input_map.values()) <= known
        known |= set(step.output_map.values())
    assert {each.name for each in whole.output} <= known


def test_an_older_image_s_names_of_inputs_are_used() -> None:
    image = A6000.image.model_copy(update={"seed_input": "random_seed", "min_tokens_input": "min_length"})
    found = parsed(render.config_text(A6000.model_copy(update={"image": image}), "tensorrt_llm"))
    names = {each.name for each in found.input}
    assert {"random_seed", "min_length"} <= names
    assert not {"seed", "min_tokens"} & names


def test_an_engine_beside_another_one_brings_its_own_model_alone() -> None:
    model = A6000.model.model_copy(update={"triton_name": "second"})
    second = A6000.model_copy(update={"model": model})
    files = render.render(second)
    assert [path for path in files if path.startswith("fill/")] == ["fill/second"]
    assert parsed(render.config_text(second, "second")).name == "second"
    assert "--load-model=second" in files["serve.sh"]


def test_the_commands_are_those_of_the_known_deployment() -> None:
    assert " ".join(build_commands.convert_options(A6000)) == (
        "--model_dir /data/models/Llama-3.1-8B-Instruct --dtype float16"
        " --use_weight_only --weight_only_precision int8"
    )
    built = " ".join(build_commands.build_options(A6000))
    for option in (
        "--checkpoint_dir /data/checkpoints/llama-3.1-8b-a6000-int8",
        "--gpt_attention_plugin auto --gemm_plugin auto --kv_cache_type paged",
        "--max_batch_size 4 --max_input_len 96000 --max_seq_len 131072 --max_num_tokens 4096",
        "--use_paged_context_fmha enable --multiple_profiles enable",
    ):
        assert option in built


def test_tensor_parallelism_reaches_conversion_build_and_launch() -> None:
    made = profile.load("llama-3.1-8b-a6000x2")
    files = render.render(made)
    assert "--tp_size 2" in files["convert.sh"]
    assert "--workers 2" in files["build.sh"]
    assert "ranks=2" in files["serve.sh"]
    assert "#SBATCH --ntasks-per-node=2" in files["slurm.sbatch"]


def test_fp8_is_calibrated_and_not_converted() -> None:
    made = profile.load("llama-3.1-8b-h100", precision="fp8")
    assert build_commands.convert_script(made) == "quantize.py"
    assert "--qformat fp8" in build_commands.convert_options(made)


@pytest.mark.parametrize("name", NAMES)
def test_the_worker_accepts_its_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = profile.load(name)
    for variable in [each for each in os.environ if each.startswith(settings.ENV_PREFIX)]:
        monkeypatch.delenv(variable)
    for line in render.render(made)["worker.env"].splitlines():
        if not line.startswith("#"):
            variable, _, value = line.partition("=")
            monkeypatch.setenv(variable, value)
    monkeypatch.setenv("LONGBATCH_DATABASE__URL", "postgresql://localhost/none")
    monkeypatch.setenv("LONGBATCH_BROKER__URL", "redis://localhost")
    found = settings.load()
    assert found.engine.name == made.name
    assert found.engine.max_input_len == made.engine.max_input_len
    assert found.engine.max_seq_len == made.engine.max_seq_len
    assert (found.engine.max_blocks is None) == (made.image.flow == "build")
    assert found.engine.time_scale >= 1
    assert found.triton.model_name == "tensorrt_llm"


@pytest.mark.parametrize("name", NAMES)
def test_the_compose_override_fits_the_compose_file(name: str, repository: Path) -> None:
    files = render.render(profile.load(name))
    override = yaml.safe_load(files["compose.override.yml"])["services"]
    base = yaml.safe_load((repository / "docker-compose.yml").read_text())["services"]
    assert set(override) <= set(base)
    told = dict(line.split("=", 1) for line in files["worker.env"].splitlines() if not line.startswith("#"))
    for service in ("api", "worker", "service-worker"):
        environment = override[service]["environment"]
        for variable in (each for each in told if each.startswith("LONGBATCH_ENGINE__")):
            assert environment[variable] == told[variable]


def test_rendered_scripts_can_be_run(tmp_path: Path) -> None:
    folder = written(A6000, tmp_path / "out")
    for script in folder.glob("*.sh"):
        assert script.stat().st_mode & stat.S_IXUSR


def test_rendering_again_removes_what_is_no_longer_rendered_and_touches_no_other_folder(
    tmp_path: Path,
) -> None:
    folder = written(A6000, tmp_path / "out")
    (folder / "repository").mkdir()  # of a release that rendered configurations
    model = A6000.model.model_copy(update={"triton_name": "second"})
    written(A6000.model_copy(update={"model": model}), folder)
    assert [path.name for path in (folder / "fill").iterdir()] == ["second"]
    assert not (folder / "repository").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(RenderError, match="other files"):
        render.write(render.render(A6000), tmp_path / "mine")


@pytest.mark.parametrize("name", NAMES)
def test_what_was_just_rendered_has_no_drift(name: str, tmp_path: Path) -> None:
    made = profile.load(name)
    folder = written(made, tmp_path / "out")
    assert sentences(made, folder) == []
    assert sentences(made, repository_of(made, tmp_path / "repository")) == []


def test_drift_names_the_file_and_the_value(tmp_path: Path) -> None:
    folder = written(A6000, tmp_path / "out")
    edit(folder / "build.sh", "--max_batch_size 4", "--max_batch_size 8")
    edit(folder / "worker.env", "96000", "48000")
    edit(folder / "fill/tensorrt_llm", "decoupled_mode:True", "decoupled_mode:False")
    edit(folder / "serve.sh", "    --grpc-keepalive-time=10000\n", "")
    (folder / "docker.sh").unlink()
    assert set(sentences(A6000, folder)) == {
        "build.sh: --max_batch_size is 8, the profile says 4",
        "worker.env: LONGBATCH_ENGINE__MAX_INPUT_LEN is 48000, the profile says 96000",
        "fill/tensorrt_llm: decoupled_mode is False, the profile says True",
        "serve.sh: --grpc-keepalive-time is missing, the profile says 10000",
        "docker.sh is missing",
    }


def test_a_changed_profile_is_drift_too(tmp_path: Path) -> None:
    folder = written(A6000, tmp_path / "out")
    found = sentences(
        A6000.model_copy(update={"engine": A6000.engine.model_copy(update={"max_batch_size": 8})}), folder
    )
    assert "fill/ensemble: triton_max_batch_size is 4, the profile says 8" in found
    assert "build.sh: --max_batch_size is 4, the profile says 8" in found


def test_in_a_repository_of_other_templates_only_the_profile_s_values_count(tmp_path: Path) -> None:
    folder = repository_of(A6000, tmp_path / "repository")
    config = folder / "tensorrt_llm" / "config.pbtxt"
    config.write_text(
        config.read_text() + 'parameters: { key: "lora_cache" value: { string_value: "${lora}" } }\n'
    )
    assert sentences(A6000, folder) == []
    edit(
        config,
        '"enable_chunked_context" value { string_value: "True"',
        '"enable_chunked_context" value { string_value: "${x}"',
    )
    assert sentences(A6000, folder) == [
        "tensorrt_llm/config.pbtxt: parameters.enable_chunked_context is ${x}, the profile says true"
    ]


def test_a_built_engine_is_compared_by_its_own_description(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"pretrained_config": {"dtype": "float16", "mapping": {"tp_size": 1}, "quantization":'
        ' {"quant_algo": "W8A16", "kv_cache_quant_algo": null}}, "build_config":'
        ' {"max_batch_size": 4, "max_input_len": 96000, "max_seq_len": 131072, "max_num_tokens": 8192,'
        ' "plugin_config": {"tokens_per_block": 64, "use_paged_context_fmha": true}}}'
    )
    assert sentences(A6000, tmp_path) == [
        "config.json: build_config.max_num_tokens is 8192, the profile says 4096"
    ]
    assert (
        "config.json: pretrained_config.quantization.quant_algo is W8A16, the profile says null"
        in sentences(profile.load("llama-3.1-8b-a6000", precision="float16"), tmp_path)
    )


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="neither"):
        drift.find(A6000, tmp_path)


def test_the_commands_render_and_check(tmp_path: Path) -> None:
    def run(words: str) -> tuple[int, str]:
        answer = CliRunner().invoke(application(), ["engine", *shlex.split(words)])
        return answer.exit_code, answer.output

    out = tmp_path / "out"
    assert run(f"render llama-3.1-8b-a6000 {out}")[0] == 0
    assert run(f"render llama-3.1-8b-a6000 {out} --check")[0] == 0
    assert run(f"check llama-3.1-8b-a6000 {repository_of(A6000, tmp_path / 'repository')}")[0] == 0
    code, words = run(f"render llama-3.1-8b-a6000 {out} --precision float16 --check")
    assert code == 1
    assert "convert.sh: --use_weight_only is not in the profile" in words.replace("`", "")
    code, words = run(f"check llama-3.1-8b-h100 {out}")
    assert code == 1
    assert run(f"check llama-3.1-8b-h100 {tmp_path}")[0] == 2


@pytest.mark.parametrize("model", MODELS)
def test_our_reader_of_the_text_format_agrees_with_protobuf_s(model: str) -> None:
    text = render.config_text(A6000, model)
    again = text_format.MessageToString(parsed(text))
    found, expected = pbtxt.values(text), pbtxt.values(again)
    names = set(found) & set(expected)
    assert {name: found[name] for name in names} == {name: expected[name] for name in names}
    # Protobuf writes no zeros and no empty texts.
    assert all(found[name] in {"0", "", "false"} for name in set(found) - names)
    assert set(expected) <= names


@given(st.text(max_size=200))
def test_the_reader_ends_on_any_text(text: str) -> None:
    with contextlib.suppress(RenderError):
        assert isinstance(pbtxt.values(text), dict)
