"""What a profile holds: the arithmetic of sizing, and the traps."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cli.engine import plan, profile
from cli.engine.errors import ProfileError
from cli.engine.hardware import GIB, SHAPES
from cli.engine.profile import PROFILES, Profile
from cli.engine.profile_groups import Precision
from longbatch.cli.main import application

NAMES = sorted(path.stem for path in PROFILES.glob("*.toml"))
A6000 = profile.load("llama-3.1-8b-a6000")
KEYS = {
    "kv_bytes_per_token",
    "pool_tokens",
    "pool_gib",
    "weights_gib",
    "total_gib",
    "full_length_jobs",
    "warnings",
}


def changed(group: str, **values: object) -> Profile:
    """The A6000's profile with other values in one group."""
    content: dict[str, Any] = A6000.model_dump()
    return Profile.model_validate(content | {group: content[group] | values})


def warnings_of(group: str, **values: object) -> str:
    return "\n".join(plan.plan(changed(group, **values)).warnings)


def test_the_a6000_holds_one_full_length_job_in_a_pool_of_16_gib() -> None:
    found = plan.plan(A6000)
    assert found.kv_bytes_per_token == 128 * 1024
    assert found.pool_tokens == 131_072
    assert found.pool_gib == 16
    assert found.pool_blocks == 2048
    assert found.full_prompt_gib == pytest.approx(11.7, abs=0.05)
    assert found.full_length_jobs == 1
    assert found.typical_jobs == 4
    assert "KV pool" in found.binds["full_length"]
    assert "batch" in found.binds["typical"]
    assert found.warnings == ()


def test_int8_weights_need_27_5_gib_in_all_and_16_bit_weights_34() -> None:
    assert plan.plan(A6000).total_gib == pytest.approx(27.5, abs=0.05)
    whole = plan.plan(profile.load("llama-3.1-8b-a6000", precision="float16"))
    assert whole.weights_gib == pytest.approx(15.0, abs=0.05)
    assert whole.total_gib == pytest.approx(34, abs=0.05)
    assert 200_000 < whole.largest_pool_tokens < 210_000


def test_the_shape_has_the_parameters_that_are_published() -> None:
    shape = SHAPES["llama-3.1-8b"]
    assert shape.layer_parameters + shape.table_parameters == 8_030_261_248


@pytest.mark.parametrize("name", NAMES)
def test_no_profile_of_ours_runs_into_a_trap(name: str) -> None:
    assert plan.plan(profile.load(name)).warnings == ()


@pytest.mark.parametrize("name", NAMES)
def test_every_profile_fits_its_gpus(name: str) -> None:
    found = plan.plan(profile.load(name))
    assert found.gpu_gib < found.gpu_memory_gib
    assert found.pool_tokens <= found.largest_pool_tokens


def test_two_gpus_share_weights_and_pool_and_hold_four_full_length_jobs() -> None:
    found = plan.plan(profile.load("llama-3.1-8b-a6000x2"))
    assert found.gpu_count == 2
    assert found.gpu_gib == pytest.approx(found.total_gib / 2, abs=0.01)
    assert found.full_length_jobs == 4


@pytest.mark.parametrize(
    ("group", "values", "words"),
    [
        (
            "engine",
            {"chunked_context": False},
            "chunked context off: the longest prompt is max_num_tokens, 4096",
        ),
        ("engine", {"paged_context_fmha": False}, "paged context FMHA off"),
        ("precision", {"kv_cache": "int8"}, "INT8 KV cache with paged context FMHA"),
        ("precision", {"kv_cache": "fp8"}, "FP8 on sm86"),
        ("precision", {"weights": "fp8"}, "FP8 on sm86"),
        ("engine", {"kv_cache_tokens": 65_536}, "pool smaller than one sequence: 65536 tokens"),
        (
            "engine",
            {"max_batch_size": 64},
            "batch larger than the pool can use: 64 slots, but the pool holds 15",
        ),
        ("engine", {"scheduler_policy": "max_utilization"}, "max_utilization"),
        ("engine", {"kv_cache_tokens": 400_000}, "pool reduced at load"),
        ("engine", {"max_num_tokens": 4100}, "not a multiple of tokens_per_block"),
        ("engine", {"max_seq_len": 200_000}, "above the 131072 positions"),
    ],
)
def test_a_pitfall_is_reported(group: str, values: dict[str, Any], words: str) -> None:
    assert words in warnings_of(group, **values)


def test_fp8_is_no_trap_where_the_gpu_has_it() -> None:
    assert plan.plan(profile.load("llama-3.1-8b-h100", precision="fp8")).warnings == ()


@given(
    tokens=st.integers(1, 10**7),
    block=st.sampled_from([16, 32, 64, 128]),
    batch=st.integers(1, 512),
    prompt=st.integers(1, 130_000),
)
def test_jobs_that_run_together_never_need_more_than_batch_and_pool(
    tokens: int, block: int, batch: int, prompt: int
) -> None:
    engine = {
        "kv_cache_tokens": tokens,
        "tokens_per_block": block,
        "max_batch_size": batch,
        "max_input_len": prompt,
    }
    made = changed("engine", **engine)
    found = plan.plan(made)
    per_job = plan.blocks_of(made.engine, prompt + made.workload.full_output_tokens)
    assert found.pool_tokens <= tokens
    assert found.full_length_jobs <= batch
    assert found.full_length_jobs * per_job <= found.pool_blocks
    if found.full_length_jobs < batch:
        assert (found.full_length_jobs + 1) * per_job > found.pool_blocks
    assert found.pool_gib == round(found.pool_tokens * found.kv_bytes_per_token / GIB, 2)


@pytest.mark.parametrize(
    ("group", "values", "words"),
    [
        ("engine", {"max_input_len": 131_072}, "max_input_len must be below max_seq_len"),
        ("gpu", {"count": 3}, "KV heads"),
        ("precision", {"weights": "bfloat16"}, "precision.dtype"),
        ("engine", {"max_batch": 4}, "Extra inputs"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(group: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        changed(group, **values)


def test_a_wrong_profile_is_named_with_its_value(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((PROFILES / "llama-3.1-8b-a6000.toml").read_text().replace('"a6000"', '"b7000"'))
    with pytest.raises(ProfileError, match=r"mine\.toml: gpu\.kind"):
        profile.load(str(path))
    path.write_text("[model")
    with pytest.raises(ProfileError, match=r"mine\.toml"):
        profile.load(str(path))


def test_an_unknown_profile_names_those_there_are() -> None:
    with pytest.raises(ProfileError, match=r"llama-3\.1-8b-h200"):
        profile.load("llama-4")


@pytest.mark.parametrize("name", NAMES)
def test_the_command_prints_the_plan_as_json(name: str) -> None:
    answer = CliRunner().invoke(application(), ["engine", "plan", name, "--json"])
    assert answer.exit_code == 0
    shown = json.loads(answer.stdout)
    assert set(shown) >= KEYS
    assert shown == json.loads(json.dumps(asdict(plan.plan(profile.load(name)))))


@pytest.mark.parametrize(
    ("name", "precision"),
    [(name, None) for name in NAMES] + [("llama-3.1-8b-a6000", "float16"), ("llama-3.1-8b-h100", "fp8")],
)
def test_the_documentation_s_table_is_what_the_planner_says(
    name: str, precision: Precision | None, repository: Path
) -> None:
    made = profile.load(name, precision=precision)
    found = plan.plan(made)
    pace = found.pace
    row = (
        f"`{name.removeprefix('llama-3.1-8b-')}`",
        made.precision.weights,
        f"{found.weights_gib:.1f}",
        f"{found.pool_tokens:,}",
        f"{found.pool_gib:.1f}",
        f"{found.total_gib:.1f}",
        f"{found.full_length_jobs} of {made.engine.max_batch_size}",
        f"{found.largest_pool_tokens:,}",
        f"{pace.full_prefill_seconds:.1f} s",
        f"{pace.full_decode_tokens_per_second:.0f}",
        f"{pace.typical_decode_tokens_per_second:.0f}",
    )
    assert f"| {' | '.join(row)} |" in (repository / "docs" / "sizing.md").read_text()


def test_the_command_says_the_same_in_words() -> None:
    answer = CliRunner().invoke(
        application(), ["engine", "plan", "llama-3.1-8b-a6000", "--precision", "float16"]
    )
    assert answer.exit_code == 0
    for words in ("128 KiB per token", "34.0", "full-length jobs at once: 1", "11.7 GiB"):
        assert words in answer.stdout
    assert CliRunner().invoke(application(), ["engine", "plan", "nothing"]).exit_code == 2
