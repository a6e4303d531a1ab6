"""What models other than Llama 3.1 8B keep in the cache, by layer; and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cli.engine import build_commands, model_config, plan, profile
from cli.engine.cache_layout import CacheLayout
from cli.engine.errors import ProfileError
from cli.engine.hardware import SHAPES
from cli.engine.model_families import FAMILIES, completed
from cli.engine.profile import PROFILES, Profile
from jobs.prompts.tokenizer_files import prepare_transformers
from longbatch.cli.main import application

KIB, MIB = 2**10, 2**20
GQA8 = {"num_key_value_heads": 8, "head_dim": 128}


def sizes(layers: int, heads: int, kv_heads: int, hidden: int, **others: object) -> dict[str, Any]:
    """What the file of each model says."""
    found = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    found |= {"hidden_size": hidden, "intermediate_size": 14_336, "vocab_size": 128_256}
    return found | {"max_position_embeddings": 131_072} | others


LLAMA = sizes(32, 32, 8, 4096, head_dim=128)
MLA = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512}
MIXTURE = {"num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1}
KDA: dict[str, object] = {"head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4}
KDA |= {
    "full_attn_layers": [4, 8, 12, 16, 20, 24],
    "kda_layers": [n for n in range(1, 28) if n % 4 or n > 24],
}
NEMOTRON = ["linear_attention", "mlp"] * 23 + ["full_attention"] * 6
MAMBA2 = {"mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1}
# As published files have them: values that their classes would fill in are left out.
FILES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "mistral": sizes(32, 32, 8, 4096, sliding_window=None),
    "ministral": sizes(32, 32, 8, 4096, sliding_window=4096),
    "ministral3": sizes(34, 32, 8, 4096, head_dim=128, sliding_window=None),
    "qwen3": sizes(32, 32, 8, 4096, sliding_window=None, use_sliding_window=False),
    "qwen3_moe": sizes(24, 32, 4, 2048, head_dim=128, sliding_window=None, **MIXTURE),
    "gpt_oss": sizes(36, 64, 8, 2880, head_dim=64, num_experts_per_tok=4),
    "gemma3_text": {
        name: value
        for name, value in sizes(26, 8, 4, 2304, sliding_window=4096).items()
        if name not in {"num_attention_heads", "num_key_value_heads", "vocab_size"}
    },
    "gemma4_text": sizes(30, 8, 4, 2304),
    "llama4_text": sizes(48, 40, 8, 5120),
    "cohere2": sizes(40, 64, 8, 8192, head_dim=128),
    "olmo3": sizes(32, 32, 8, 4096),
    "exaone4": sizes(32, 32, 8, 4096, sliding_window=4096),
    "qwen3_next": sizes(48, 16, 2, 2048, **MIXTURE),
    "qwen3_5_text": sizes(32, 16, 4, 4096),
    "nemotron_h": sizes(52, 32, 8, 4096),
    "granitemoehybrid": sizes(
        40, 32, 8, 4096, head_dim=128, layer_types=(["mamba"] * 9 + ["attention"]) * 4, **MAMBA2
    ),
    "jamba": sizes(32, 32, 8, 4096),
    "falcon_h1": sizes(
        32, 32, 8, 4096, mamba_n_heads=128, mamba_d_head=8, mamba_d_state=256, mamba_n_groups=1
    ),
    "deepseek_v3": sizes(61, 128, 128, 7168, **MLA, **MIXTURE),
    "kimi_k2": sizes(61, 64, 64, 7168, **MLA, **MIXTURE),
    "deepseek_v32": sizes(61, 128, 128, 7168, index_head_dim=128, **MLA, **MIXTURE),
    "kimi_linear": sizes(27, 32, 32, 2304, linear_attn_config=KDA, **MLA),
}


def layout(model_type: str, **values: Any) -> CacheLayout:  # noqa: ANN401  # any field of a config
    """What a model keeps whose config.json is that of its type, with these values."""
    content = {"model_type": model_type} | FILES.get(model_type, {}) | values
    return model_config.layout_of(completed(content))


# The table "Models that break the KV accounting": 16-bit KiB a token in layers that keep every token.
# Constants: windows of 131,072-token sequences, and states in 32 bits with convolutions in 16.
@pytest.mark.parametrize(
    ("model_type", "values", "kib_per_token", "bytes_per_sequence", "kinds"),
    [
        ("llama", {}, 128, 0, {"full": 32}),
        ("qwen3", {}, 128, 0, {"full": 32}),
        ("qwen3_moe", {}, 24 * 2, 0, {"full": 24}),
        ("ministral3", {}, 136, 0, {"full": 34}),
        ("gpt_oss", {}, 36, 4.5 * MIB, {"full": 18, "sliding": 18}),
        ("gemma3_text", {}, 16, 22 * 4096 * 4 * KIB, {"full": 4, "sliding": 22}),
        ("gemma4_text", {}, 5 * 8, 25 * 512 * 4 * KIB, {"full": 5, "sliding": 25}),
        ("llama4_text", {}, 48, 36 * 8192 * 4 * KIB, {"full": 12, "chunked": 36}),
        ("ministral", {}, 0, 512 * MIB, {"sliding": 32}),
        ("cohere2", {}, 40, 30 * 4096 * 4 * KIB, {"full": 10, "sliding": 30}),
        ("olmo3", {}, 32, 24 * 4096 * 4 * KIB, {"full": 8, "sliding": 24}),
        ("qwen3_next", {}, 24, 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2), {"full": 12, "recurrent": 36}),
        ("qwen3_5_text", {}, 32, 24 * (32 * 128 * 128 * 4 + 8192 * 3 * 2), {"full": 8, "recurrent": 24}),
        (
            "nemotron_h",
            {"layers_block_type": NEMOTRON, "n_groups": 8},
            24,
            23 * (8192 * 128 * 4 + (8192 + 2 * 8 * 128) * 3 * 2),
            {"full": 6, "recurrent": 23},
        ),
        (
            "granitemoehybrid",
            {},
            4 * 4,
            36 * (8192 * 128 * 4 + (8192 + 2 * 128) * 3 * 2),
            {"full": 4, "recurrent": 36},
        ),
        ("jamba", {}, 16, 28 * (8192 * 16 * 4 + 8192 * 3 * 2), {"full": 4, "recurrent": 28}),
        (
            "falcon_h1",
            {},
            128,
            32 * (1024 * 256 * 4 + (1024 + 2 * 256) * 3 * 2),
            {"full": 32, "recurrent": 32},
        ),
        ("deepseek_v3", {}, 61 * 1.125, 0, {"latent": 61}),
        ("kimi_k2", {}, 61 * 1.125, 0, {"latent": 61}),
        # The indexer's key: 128 bytes and a scale of 4.
        ("deepseek_v32", {}, 61 * (576 * 2 + 132) / KIB, 0, {"latent": 61}),
        (
            "kimi_linear",
            {},
            6 * 1.125,
            21 * (4096 * 128 * 4 + 3 * 4096 * 3 * 2),
            {"latent": 6, "recurrent": 21},
        ),
    ],
)
def test_each_kind_of_layer_is_counted_as_it_caches(
    model_type: str,
    values: dict[str, Any],
    kib_per_token: float,
    bytes_per_sequence: float,
    kinds: dict[str, int],
) -> None:
    found = layout(model_type, **values)
    assert found.token_bytes(2) == kib_per_token * KIB
    assert found.sequence_bytes(2, 131_072) == bytes_per_sequence
    counted: dict[str, int] = {}
    for group in found.groups:
        counted[group.kind] = counted.get(group.kind, 0) + group.layers
    assert counted == kinds


@pytest.mark.parametrize("model_type", sorted(FILES.keys() - {"kimi_k2", "nemotron_h"}))
def test_what_a_file_leaves_out_is_what_its_class_in_transformers_fills_in(model_type: str) -> None:
    prepare_transformers()
    from transformers import AutoConfig  # takes seconds

    whole = AutoConfig.for_model(model_type, **FILES[model_type])
    types = getattr(whole, "layers_block_type", None)
    content = whole.to_dict() | ({"layer_types": list(types)} if types else {})
    assert model_config.layout_of(completed(content)) == layout(model_type)
    for name, value in FAMILIES[model_type].defaults.items():
        assert name in FILES[model_type] or content.get(name, value) == value


def test_an_eight_bit_cache_halves_keys_and_windows_and_leaves_states_as_they_are() -> None:
    windows, states = layout("gpt_oss"), layout("qwen3_next")
    assert windows.token_bytes(1) * 2 == windows.token_bytes(2)
    assert windows.sequence_bytes(1, 4096) * 2 == windows.sequence_bytes(2, 4096)
    assert states.sequence_bytes(1, 4096) == states.sequence_bytes(2, 4096)


def test_every_gpu_keeps_what_is_latent_whole() -> None:
    assert layout("deepseek_v3").token_bytes(2, gpus=8) == 8 * layout("deepseek_v3").token_bytes(2)
    assert layout("llama").token_bytes(2, gpus=8) == 128 * KIB


def test_a_window_longer_than_the_longest_sequence_never_fills() -> None:
    assert layout("ministral").sequence_bytes(2, 1024) == 128 * MIB


def test_layers_that_read_the_cache_of_earlier_ones_keep_nothing_of_their_own() -> None:
    types = ["sliding_attention"] * 5 + ["full_attention"]
    whole = layout("gemma4_text", num_hidden_layers=12, layer_types=types * 2)
    shared = layout("gemma4_text", num_hidden_layers=12, layer_types=types * 2, num_kv_shared_layers=6)
    assert whole.token_bytes(2) == 2 * shared.token_bytes(2)
    assert whole.sequence_bytes(2, 9999) == 2 * shared.sequence_bytes(2, 9999)


@pytest.mark.parametrize(
    ("model_type", "values", "words"),
    [
        ("minimax", {}, "minimax is not counted"),
        ("zamba2", {}, "zamba2"),
        ("t5", {"num_layers": 2}, "t5 is not counted; those that are: .*llama"),
        ("mamba2", {}, "mamba2"),
        ("gpt2", {}, "gpt2 is not counted"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "llama: its class is no decoder"),
        (
            "mllama",
            {"text_config": {"cross_attention_layers": [3, 8]}},
            "mllama_text: layers that attend to images",
        ),
        ("gemma3", {"text_config": {"head_dim": "x"}}, "gemma3_text: config.json has no number"),
        ("no-such-model", {}, "no-such-model is not counted"),
    ],
)
def test_a_model_that_cannot_be_counted_is_refused_by_name(
    model_type: str, values: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with_weights(tmp_path, 10 * 2**30)
    with pytest.raises(ProfileError, match=words):
        model_config.read(written(tmp_path, model_type, **values))


@pytest.mark.parametrize(
    ("model_type", "name", "value"),
    [
        ("llama", "num_hidden_layers", 10**30),
        ("llama", "num_hidden_layers", 0),
        ("llama", "hidden_size", 10**30),
        ("llama", "num_key_value_heads", -1),
        ("llama", "head_dim", -1),
        ("llama", "vocab_size", 0),
        ("llama", "intermediate_size", "8"),
        ("llama", "layer_types", ["full_attention"] * 31),
        ("llama", "layer_types", ["weird"] * 32),
        ("gpt_oss", "sliding_window", -5),
        ("gpt_oss", "moe_intermediate_size", "x"),
        ("mistral", "sliding_window", -5),
        ("gemma3", "text_config", {"num_hidden_layers": 10**9}),
        ("gemma4_text", "per_layer_config", {"0": 1}),
        ("gemma4_text", "num_kv_shared_layers", 30),
        ("jamba", "mamba_expand", -5),
        ("granitemoehybrid", "mamba_n_groups", None),
        ("deepseek_v3", "kv_lora_rank", -5),
        ("qwen3_next", "linear_conv_kernel_dim", 0),
    ],
)
def test_a_number_that_no_model_can_have_is_refused_with_the_model_s_name(
    model_type: str, name: str, value: object, tmp_path: Path
) -> None:
    with_weights(tmp_path, 10 * 2**30)
    with pytest.raises(ProfileError, match=f"model_type {model_type}"):
        made(
            tmp_path,
            (SHAPE, ""),
            config=written(tmp_path, model_type, **{name: value}),
        )


_ANY_VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 300),
    st.sampled_from([10**9, 10**30, 1.5, float("nan"), float("inf"), "", "8", "auto", [], [1], {}, {"a": 1}]),
    st.lists(st.sampled_from(["full_attention", "sliding_attention", "mamba", "conv", 7]), max_size=3),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    model_type=st.sampled_from(
        ["llama", "gpt_oss", "gemma4_text", "llama4_text", "deepseek_v3", "qwen3_next", "falcon_h1"]
    ),
    values=st.dictionaries(
        st.sampled_from(
            [*LLAMA, "layer_types", "sliding_window", "num_kv_shared_layers", "kv_lora_rank", "mamba_d_head"]
        ),
        _ANY_VALUE,
        min_size=1,
        max_size=3,
    ),
    weights=st.sampled_from([0, -1, 1, 10**6, 10**10, 10**30]),
)
def test_whatever_a_config_says_it_is_planned_with_a_cache_or_refused(
    tmp_path: Path, model_type: str, values: dict[str, Any], weights: int
) -> None:
    with_weights(tmp_path, weights)
    path = written(tmp_path, model_type, **values)
    try:
        found = plan.plan(made(tmp_path, (SHAPE, ""), config=path))
    except ProfileError:
        return
    assert found.kv_bytes_per_token + found.kv_bytes_per_sequence > 0
    assert found.weights_gib >= 0
    assert found.pace.full_decode_tokens_per_second >= 0


def test_a_pattern_of_blocks_is_read_from_a_file_that_names_no_layers(tmp_path: Path) -> None:
    """As Nemotron-H's own file has it."""
    pattern = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
    with_weights(tmp_path, 16 * 2**30)
    path = written(
        tmp_path, "nemotron_h", hybrid_override_pattern=pattern, num_hidden_layers=52, n_groups=8, **GQA8
    )
    found = model_config.read(path)
    assert found.layers == 52
    assert {each.kind: each.layers for each in found.cache.groups} == {"recurrent": 24, "full": 4}
    assert found.cache.token_bytes(2) == 16 * KIB


def test_a_window_that_the_model_s_class_does_not_know_is_not_one() -> None:
    assert layout("llama", sliding_window=4096) == layout("llama")
    assert layout("mistral", sliding_window=4096).token_bytes(2) == 0


def test_weights_below_the_size_of_16_bit_tables_are_planned(tmp_path: Path) -> None:
    with_weights(tmp_path, 150 * 2**20)
    path = written(tmp_path, "gemma3_text", hidden_size=640, quantization_config={"bits": 4})
    assert plan.plan(made(tmp_path, (SHAPE, ""), config=path)).pace.full_decode_tokens_per_second > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "config.json"),
        ("[]", "no model_type"),
        ('{"max_batch_size": 4}', "no model_type"),
        ('{"model_type": ["llama"]}', "no model_type"),
        ("[" * 100_000, "config.json"),
    ],
)
def test_a_file_that_is_no_model_s_config_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ProfileError, match=words):
        model_config.read(tmp_path / "config.json")
    with pytest.raises(ProfileError, match="No such file"):
        model_config.read(tmp_path / "none.json")


def written(folder: Path, model_type: str, **values: object) -> Path:
    """A config.json as hubs have them, with these values."""
    content = {"model_type": model_type} | FILES.get(model_type, {}) | values
    (folder / "config.json").write_text(json.dumps(content))
    return folder / "config.json"


def with_weights(folder: Path, total_bytes: int) -> None:
    index = {"metadata": {"total_size": total_bytes}, "weight_map": {}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


SHAPE = 'shape = "llama-3.1-8b"'
REPOSITORY = "meta-llama/Llama-3.1-8B-Instruct"


def made(folder: Path, *changes: tuple[str, str], config: Path | None = None) -> Profile:
    """The H200's profile with other texts in it."""
    text = (PROFILES / "llama-3.1-8b-h200.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "mine.toml").write_text(text)
    return profile.load(str(folder / "mine.toml"), config=config)


def test_llama_s_own_config_is_the_shape_that_is_known(tmp_path: Path) -> None:
    path = written(tmp_path, "llama")
    found = model_config.read(path)
    shape = SHAPES["llama-3.1-8b"]
    assert found.layer_parameters + found.table_parameters == shape.layer_parameters + shape.table_parameters
    known, read = plan.plan(profile.load("llama-3.1-8b-h200")), plan.plan(made(tmp_path, config=path))
    assert read.pace == known.pace
    assert (read.total_gib, read.largest_pool_tokens) == (known.total_gib, known.largest_pool_tokens)
    assert read.blocks_per_sequence == 0


def test_weights_of_a_mixture_are_read_beside_its_config_or_asked_for(tmp_path: Path) -> None:
    path = written(
        tmp_path, "gpt_oss", num_hidden_layers=24, num_local_experts=32, quantization_config={"a": 1}
    )
    with pytest.raises(ProfileError, match=r"gpt_oss: the weights .* model\.safetensors\.index\.json"):
        model_config.read(path)
    with_weights(tmp_path, 13_761_264_768)
    found = plan.plan(made(tmp_path, (SHAPE, ""), (REPOSITORY, "openai/gpt-oss-20b"), config=path))
    assert found.weights_gib == pytest.approx(12.82, abs=0.01)
    assert found.repository == "openai/gpt-oss-20b"
    assert found.kv_bytes_per_token == 24 * KIB
    assert found.kv_bytes_per_sequence == 3 * MIB
    assert found.blocks_per_sequence == 2  # 1.5 MiB a block
    assert any("windows" in each for each in found.warnings)


def test_jobs_that_fit_are_counted_with_the_constant_of_their_sequence(tmp_path: Path) -> None:
    path = written(tmp_path, "llama4_text")
    with_weights(tmp_path, 100 * 2**30)
    mine = made(tmp_path, (SHAPE, ""), config=path)
    found = plan.plan(mine)
    text = plan.blocks_of(mine.engine, mine.engine.max_input_len + mine.workload.full_output_tokens)
    assert found.blocks_per_sequence == 384  # 1152 MiB in blocks of 3 MiB
    assert found.full_length_jobs == min(16, found.pool_blocks // (text + 384))


def test_a_repository_of_another_model_than_the_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ProfileError, match=r"nothing says that openai/gpt-oss-20b has the shape llama-3\.1-8b"
    ):
        made(tmp_path, (REPOSITORY, "openai/gpt-oss-20b"))
    assert made(tmp_path, (REPOSITORY, "unsloth/Meta-Llama-3.1-8B")).shape == SHAPES["llama-3.1-8b"]


def test_a_config_of_another_model_than_the_shape_names_what_differs(tmp_path: Path) -> None:
    path = written(tmp_path, "llama", num_hidden_layers=80)
    with pytest.raises(ProfileError, match=r"layers is 80, of llama-3\.1-8b 32"):
        made(tmp_path, config=path)
    with pytest.raises(ProfileError, match=r"model\.config or model\.shape"):
        made(tmp_path, (SHAPE, ""))


def test_the_profile_names_its_config_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    written(tmp_path / "model", "ministral3", **GQA8)
    found = made(tmp_path, (SHAPE, 'config = "model/config.json"'))
    assert plan.plan(found).kv_bytes_per_token == 136 * KIB


def test_the_command_plans_another_model_and_says_its_layers(tmp_path: Path) -> None:
    path = written(tmp_path, "gemma3_text")
    made(tmp_path, (SHAPE, ""), config=path)
    answer = CliRunner().invoke(
        application(), ["engine", "plan", str(tmp_path / "mine.toml"), "--config", str(path)]
    )
    assert answer.exit_code == 0, answer.output
    assert "16 KiB per token and 352.0 MiB per sequence" in answer.stdout
    assert "22 sliding of 4096 tokens, 4 full" in answer.stdout


def test_a_fetched_model_is_compared_with_what_was_planned(tmp_path: Path) -> None:
    def check() -> tuple[int, str]:
        answer = CliRunner().invoke(application(), ["engine", "check", "llama-3.1-8b-h200", str(tmp_path)])
        return answer.exit_code, answer.output

    (tmp_path / "tokenizer.json").write_text("{}")
    written(tmp_path, "llama")
    assert check()[0] == 0
    written(tmp_path, "llama", intermediate_size=11_008)
    code, said = check()
    assert code == 1
    assert "config.json: intermediate is 11008, the profile says 14336" in said
    written(tmp_path, "minimax")
    assert check()[0] == 2


def test_the_worker_is_told_the_constant_of_a_sequence_where_there_is_one(tmp_path: Path) -> None:
    path = written(tmp_path, "gemma3_text")
    constant = plan.plan(made(tmp_path, (SHAPE, ""), config=path)).blocks_per_sequence
    told = build_commands.engine_settings(made(tmp_path, (SHAPE, ""), config=path))
    assert told["LONGBATCH_ENGINE__BLOCKS_PER_SEQUENCE"] == str(constant) == "352"
    assert not any("BLOCKS" in each for each in build_commands.engine_settings(made(tmp_path)))
