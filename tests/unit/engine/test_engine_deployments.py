"""What a profile adds for number formats, several GPUs and machines, shared machines and clusters.

The flags are those of convert_checkpoint.py, quantize.py, trtllm-build and the model configuration of
TensorRT-LLM 0.19 (tensorrtllm_backend v0.19.0) and a later release, read there and not run.
"""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.engine import build_commands, drift, plan, profile, render, sharing, values
from cli.engine.errors import ProfileError
from cli.engine.profile import Profile
from longbatch.cli.main import application

A6000 = profile.load("llama-3.1-8b-a6000")
# Every option that the scripts of TensorRT-LLM 0.19 declare among those that this product could want.
CONVERT = set(
    """
    model_dir output_dir dtype tp_size pp_size use_weight_only weight_only_precision int8_kv_cache
    fp8_kv_cache calib_dataset calib_size workers
    """.split()  # noqa: SIM905  # read as one line of names
)
QUANTIZE = set(
    """
    model_dir output_dir dtype tp_size pp_size qformat kv_cache_dtype awq_block_size calib_dataset calib_size
    """.split()  # noqa: SIM905
)
BUILD = set(
    """
    checkpoint_dir output_dir gpt_attention_plugin gemm_plugin kv_cache_type tokens_per_block max_batch_size
    max_input_len max_seq_len max_num_tokens use_paged_context_fmha multiple_profiles workers
    use_fp8_context_fmha speculative_decoding_mode max_draft_len
    """.split()  # noqa: SIM905
)
QFORMATS = {"full_prec", "int8_wo", "fp8", "int4_awq"}


def changed(base: Profile = A6000, **groups: dict[str, Any]) -> Profile:
    content = base.model_dump()
    for name, fields in groups.items():
        content[name] = (content[name] or {}) | fields
    return Profile.model_validate(content)


def names_of(options: list[str]) -> set[str]:
    return {each.split()[0].removeprefix("--") for each in options}


@pytest.mark.parametrize(
    ("weights", "cache"),
    list(itertools.product(["float16", "int8", "fp8", "int4_awq"], ["float16", "int8", "fp8"])),
)
def test_every_pair_of_number_formats_has_options_that_its_script_knows(weights: str, cache: str) -> None:
    made = changed(precision={"weights": weights, "kv_cache": cache, "calibration": "/data/news"})
    options = build_commands.convert_options(made)
    is_quantized = build_commands.convert_script(made) == "quantize.py"
    assert names_of(options) <= (QUANTIZE if is_quantized else CONVERT)
    assert names_of(build_commands.build_options(made)) <= BUILD
    if is_quantized:
        (qformat,) = (each.split()[1] for each in options if each.startswith("--qformat"))
        assert qformat in QFORMATS
    is_calibrated = is_quantized or cache == "int8"
    assert ("--calib_dataset /data/news" in options) == is_calibrated
    assert any("kv_cache" in each for each in options) == (cache != "float16")
    assert any("FP8" in each for each in plan.plan(made).warnings) == ("fp8" in {weights, cache})


def test_awq_weights_are_half_as_large_as_int8_and_are_checked_by_their_own_name(tmp_path: Path) -> None:
    awq, int8 = (changed(precision={"weights": each}) for each in ("int4_awq", "int8"))
    layers = [plan.weight_bytes(each) - 2 * each.shape.table_parameters for each in (awq, int8)]
    assert layers[0] / layers[1] == pytest.approx(0.516, abs=0.001)
    (tmp_path / "config.json").write_text('{"pretrained_config": {"quantization": {"quant_algo": "W8A16"}}}')
    said = [each.sentence() for each in drift.find(awq, tmp_path)]
    assert (
        "config.json: pretrained_config.quantization.quant_algo is W8A16, the profile says W4A16_AWQ" in said
    )


def test_stages_of_layers_reach_conversion_and_are_multiplied_with_the_shares_of_each() -> None:
    made = changed(gpu={"count": 4, "pipeline": 2})
    assert {"--tp_size 2", "--pp_size 2"} <= set(build_commands.convert_options(made))
    assert "--workers 4" in build_commands.build_options(made)
    files = render.render(made)
    assert "ranks=4" in files["serve.sh"]
    assert plan.plan(made).gpu_count == 4


def test_stages_speed_up_a_full_batch_and_not_a_job_that_runs_alone() -> None:
    one, two = plan.plan(A6000).pace, plan.plan(changed(gpu={"count": 2, "pipeline": 2})).pace
    assert two.full_decode_tokens_per_second == one.full_decode_tokens_per_second
    assert two.typical_decode_tokens_per_second == pytest.approx(
        2 * one.typical_decode_tokens_per_second, 0.01
    )
    assert build_commands.time_scale(changed(gpu={"count": 2, "pipeline": 2})) == 1


def test_several_machines_are_a_job_of_slurm_with_a_rank_for_each_gpu() -> None:
    made = changed(gpu={"count": 16, "pipeline": 2, "nodes": 2})
    files = render.render(made)
    assert (
        "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node=8\n" in files["slurm.sbatch"]
    )
    assert "num_nodes:2\n" in files["fill/tensorrt_llm"]
    assert "NODES=2\n" in files["engine.env"]


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"count": 4, "pipeline": 3}, "multiple of gpu.pipeline"),
        ({"count": 16}, "16 GPUs on one machine: set gpu.nodes"),
        ({"count": 2, "devices": (0, 0)}, "2 different|count different"),
        ({"count": 3}, "must divide the model's 8 KV heads"),
    ],
)
def test_gpus_that_do_not_divide_are_refused(gpu: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        changed(gpu=gpu)


def test_memory_of_the_host_for_reused_prefixes_is_filled_in_bytes() -> None:
    assert "kv_cache_host_memory_bytes" not in values.fill(A6000, "tensorrt_llm")
    made = changed(engine={"host_cache_gib": 32})
    assert values.fill(made, "tensorrt_llm")["kv_cache_host_memory_bytes"] == str(32 * 2**30)
    alone = changed(engine={"host_cache_gib": 32, "kv_cache_reuse": False})
    assert any("host_cache_gib" in each for each in plan.plan(alone).warnings)


def test_a_draft_model_reaches_the_build_and_bls_and_the_plan_says_who_uses_it() -> None:
    made = changed(speculative={"max_draft_len": 5, "draft_model": "tensorrt_llm_draft"})
    assert {"--speculative_decoding_mode draft_tokens_external", "--max_draft_len 5"} <= set(
        build_commands.build_options(made)
    )
    assert values.fill(made, "tensorrt_llm_bls")["tensorrt_llm_draft_model_name"] == "tensorrt_llm_draft"
    assert any("Longbatch sends none" in each for each in plan.plan(made).warnings)


def on_gpus(name: str, *devices: int, **engine: object) -> Profile:
    made = changed(
        model={"triton_name": name}, gpu={"devices": devices, "count": len(devices)}, engine=engine
    )
    return made.model_copy(update={"name": name})


def test_engines_on_one_machine_are_added_up_by_gpu() -> None:
    one = plan.plan(A6000).gpu_gib
    taken = sharing.gib_by_gpu([on_gpus("first", 0), on_gpus("second", 1)])
    assert taken == {0: one, 1: one}


@pytest.mark.parametrize(
    ("engines", "words"),
    [
        (
            [on_gpus("first", 0), on_gpus("second", 0)],
            r"GPU 0 would hold 54\.\d GiB of its 48\.0: first, second",
        ),
        ([on_gpus("first", 0), A6000], "without gpu.devices every engine begins with GPU 0"),
        ([on_gpus("first", 0), on_gpus("first", 1)], "both called first"),
        (
            [on_gpus("first", 0), changed(on_gpus("other", 0), gpu={"kind": "h100"})],
            "is a6000 in first and h100",
        ),
    ],
)
def test_gpus_that_are_booked_twice_are_refused(engines: list[Profile], words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        sharing.gib_by_gpu(engines)


def test_the_command_refuses_engines_that_do_not_fit_beside_each_other(tmp_path: Path) -> None:
    paths = [tmp_path / "one.toml", tmp_path / "two.toml"]
    text = (profile.PROFILES / "llama-3.1-8b-a6000.toml").read_text()
    for gpu, path in enumerate(paths):
        named = text.replace("[gpu]", f"[gpu]\ndevices = [{gpu}]")
        path.write_text(named.replace("[model]", f'[model]\ntriton_name = "engine_{gpu}"'))
    command = ["engine", "plan", str(paths[0]), "--beside", str(paths[1])]
    assert CliRunner().invoke(application(), command).exit_code == 0
    paths[1].write_text(paths[1].read_text().replace("devices = [1]", "devices = [0]"))
    answer = CliRunner().invoke(application(), command)
    assert answer.exit_code == 2
    assert "GPU 0 would hold" in re.sub(r"\s+", " ", answer.output)


def test_what_a_cluster_asks_of_a_job_is_in_its_script() -> None:
    made = changed(slurm={"account": "nlp", "partition": "gpu-long", "time": "2-00:00:00"})
    script = render.render(made)["slurm.sbatch"]
    options = ["account=nlp", "partition=gpu-long", "time=2-00:00:00", "output=%x-%j.log"]
    assert "".join(f"#SBATCH --{each}\n" for each in options) in script
    assert "#SBATCH --account" not in render.render(A6000)["slurm.sbatch"]
