"""llama.cpp as the stack's engine: what is refused before it starts, and the settings that follow."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from cli.demo.run import run_llama
from cli.stack.errors import StackError
from cli.stack.foreground import run
from cli.stack.ports import LOOPBACK
from cli.stack.servers.llama_options import (
    LlamaCppMissingError,
    LlamaModel,
    LlamaOptions,
    bundled_gguf,
    kv_bytes_per_token,
)
from jobs.engines.capacity import Capacity
from jobs.prompts.gguf import Gguf
from worker.engine.deadlines import deadlines_for

OPTIONS = LlamaOptions(gguf=bundled_gguf(), threads=1)
MODEL = LlamaModel.of(OPTIONS)


def test_the_context_is_the_models_own_unless_a_shorter_one_is_chosen() -> None:
    assert MODEL.context == 8192
    assert LlamaModel.of(replace(OPTIONS, context=1000)).context == 1000
    with pytest.raises(StackError, match="--context 9000 exceeds the model's 8192 tokens"):
        LlamaModel.of(replace(OPTIONS, context=9000))


def test_a_link_names_the_model_and_keeps_its_folder(tmp_path: Path) -> None:
    """In Hugging Face's cache, models are links to files that are named by their digest."""
    link = tmp_path / "mine.gguf"
    link.symlink_to(bundled_gguf())
    model = LlamaModel.of(replace(OPTIONS, gguf=link))
    assert (model.name, model.gguf.path) == ("mine", link)


def test_a_cache_that_does_not_fit_names_a_context_that_does() -> None:
    # 30 layers, 3 heads of 64, keys and values in 16 bits: 23,040 bytes a token.
    assert kv_bytes_per_token(MODEL.gguf) == 23_040
    MODEL.check_memory(2**30)
    with pytest.raises(StackError, match="choose --context 4096 or less"):
        MODEL.check_memory(4 * 10**8)
    with pytest.raises(StackError, match="choose a smaller model"):
        MODEL.check_memory(10**8)


def test_a_model_that_does_not_tell_its_cache_is_not_refused() -> None:
    unknown = Gguf(MODEL.gguf.path, {"general.architecture": "mamba", "mamba.block_count": 24})
    assert kv_bytes_per_token(unknown) is None
    replace(MODEL, gguf=unknown).check_memory(1)


def test_the_settings_hold_every_slot_at_full_length() -> None:
    settings = MODEL.settings("http://127.0.0.1:1", Path("/tokenizer"))
    assert settings["LONGBATCH_ENGINE__MAX_BLOCKS"] == str(2 * 8192 // 32)
    assert settings["LONGBATCH_ENGINE__MAX_SEQ_LEN"] == "8192"
    assert settings["LONGBATCH_ENGINE__MAX_INPUT_LEN"] == "8191"
    odd = replace(MODEL, context=1000).settings("http://127.0.0.1:1", Path("/tokenizer"))
    assert odd["LONGBATCH_ENGINE__MAX_BLOCKS"] == "64"


def test_no_deadline_ends_a_slow_answer() -> None:
    """On one busy core the small model read 8 tokens a second and wrote 1.5."""
    scale = float(MODEL.defaults()["LONGBATCH_ENGINE__TIME_SCALE"])
    capacity = Capacity(
        max_batch_size=2, max_blocks=512, tokens_per_block=32, max_input_len=8191, max_seq_len=8192
    )
    found = deadlines_for(prompt_tokens=4000, max_tokens=500, capacity=capacity, time_scale=scale)
    assert found.first_token > 4000 / 8
    assert found.total > 4000 / 8 + 500 / 1.5


def test_what_is_not_installed_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(LlamaCppMissingError, match="make setup ENGINE=llama"):
        LlamaModel.of(OPTIONS)
    with pytest.raises(LlamaCppMissingError, match="make setup ENGINE=llama"):
        bundled_gguf()


@pytest.mark.parametrize("name", ["LONGBATCH_ENGINE__URL", "LONGBATCH_TRITON__URL"])
def test_another_engine_in_the_environment_is_not_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    with pytest.raises(StackError, match=f"unset {name}"):
        run(data_dir=tmp_path, host=LOOPBACK, port=0, tls=None, ready_file=None, engine=OPTIONS)
    with pytest.raises(StackError, match=f"unset {name}"):
        run_llama(None, gguf=None)


def test_the_weights_of_a_model_in_several_files_are_those_of_all(tmp_path: Path) -> None:
    names = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "m-00002-of-00003.gguf", "m.gguf"]
    for size, name in enumerate(names, start=1):
        (tmp_path / name).write_bytes(bytes(size))
    sizes = [replace(MODEL, gguf=Gguf(tmp_path / name, {})).num_bytes for name in names]
    assert sizes == [1 + 2, 2, 3, 4]
