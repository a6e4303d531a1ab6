"""The profile that is proposed for a model's config.json and a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.engine import plan, profile, proposal
from cli.engine.errors import ProfileError
from longbatch.cli.main import application

_QWEN3_32B = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 5120,
    "intermediate_size": 25_600,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "Qwen3-32B").mkdir()
    path = tmp_path / "Qwen3-32B" / "config.json"
    path.write_text(json.dumps(_QWEN3_32B))
    return path


def test_the_fewest_gpus_are_proposed_that_hold_one_sequence_of_full_length(config: Path) -> None:
    on_h100, on_l40s = (proposal.propose(config, each) for each in ("h100", "l40s"))
    assert (on_h100.gpu.count, on_l40s.gpu.count) == (1, 2)
    for each in (on_h100, on_l40s):
        found = plan.plan(each)
        assert found.full_length_jobs >= 1
        assert found.gpu_gib < found.gpu_memory_gib
        assert each.engine.max_seq_len == 40_960
        assert found.warnings == ()


def test_a_saved_proposal_is_the_profile_that_was_planned(config: Path, tmp_path: Path) -> None:
    saved = tmp_path / "qwen3-32b.toml"
    answer = CliRunner().invoke(
        application(),
        ["engine", "plan", "--config", str(config), "--gpu", "h200", "--save", str(saved), "--json"],
    )
    assert answer.exit_code == 0, answer.output
    planned, read = json.loads(answer.stdout), plan.plan(profile.load(str(saved)))
    assert planned["profile"] == read.profile == "qwen3-32b"
    assert (planned["pool_tokens"], planned["total_gib"]) == (read.pool_tokens, read.total_gib)


def test_a_model_that_does_not_fit_is_refused(config: Path) -> None:
    with pytest.raises(
        ProfileError, match=r"qwen3-32b does not fit: 1 RTX A6000 48 GB do not hold its weights"
    ):
        proposal.propose(config, "a6000", count=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a PROFILE, or a model and a GPU"),
        (["--gpu", "h100"], "name a PROFILE, or a model and a GPU"),
        (["llama-3.1-8b-h100", "--gpu", "h100"], "leave PROFILE out"),
        (["--config", "CONFIG", "--gpu", "h1000"], "there are no figures of the GPU h1000"),
    ],
)
def test_a_proposal_needs_a_model_and_a_known_gpu(arguments: list[str], words: str, config: Path) -> None:
    named = [str(config) if each == "CONFIG" else each for each in arguments]
    answer = CliRunner().invoke(application(), ["engine", "plan", *named])
    assert answer.exit_code == 2
    assert words in answer.output


def test_planning_imports_no_transformers_and_prints_no_warning(config: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from cli.engine import plan, proposal;"
        f"plan.plan(proposal.propose(Path({str(config)!r}), 'h100'));"
        "print(sorted({'transformers', 'torch', 'tokenizers'} & sys.modules.keys()))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("[]\n", "")
