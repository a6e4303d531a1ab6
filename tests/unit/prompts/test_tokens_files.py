"""Tokenizers of other kinds than the bundled one, and where tokenizer files come from."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers

from jobs.prompts.chat_template import ChatTemplateError
from jobs.prompts.messages import Message
from jobs.prompts.token_bytes import UnsupportedTokenizerError
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import (
    TokenizerMissingError,
    cache_directory,
    tokenizer_directory,
)
from small_tokenizer import CONTROLS, TEMPLATE, byte_level, save
from worker.inference.detokenize import Detokenizer


def sentence_piece(directory: Path) -> Path:
    """A vocabulary that holds its control tokens as pieces that text can be merged into."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = ["\u2581", *"abcdefghijklmnopqrstuvwxyz<>/|", "th", "the", "\u2581the", "</", "</s", "<s"]
    merges = [
        ("t", "h"),
        ("th", "e"),
        ("\u2581", "the"),
        ("<", "/"),
        ("</", "s"),
        ("</s", ">"),
        ("<", "s"),
        ("<s", ">"),
    ]
    ids = {piece: number for number, piece in enumerate([*vocabulary, *pieces])}
    backend = tokenizers.Tokenizer(
        models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in vocabulary[:3]])
    save(
        backend, directory, "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}", bos="<s>", eos="</s>"
    )
    return directory


@pytest.fixture(scope="module")
def level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_level(tmp_path_factory.mktemp("byte-level"))


@pytest.fixture(scope="module")
def level_tokenizer(level: Path) -> Tokenizer:
    return Tokenizer.load(str(level))


@pytest.fixture(scope="module")
def pieces_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(str(sentence_piece(tmp_path_factory.mktemp("sentence-piece"))))


def test_a_template_with_stripping_and_unspecial_tokens_renders_as_transformers_does(
    level: Path, level_tokenizer: Tokenizer
) -> None:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast.from_pretrained(level, local_files_only=True)
    turns = [{"role": "system", "content": "the   lazy"}, {"role": "user", "content": "\u00e4 dog  runs"}]
    expected = fast.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    messages = [Message("system", "the   lazy"), Message("user", "\u00e4 dog  runs")]
    assert level_tokenizer.encode_messages(messages).tolist() == expected


def test_content_keeps_white_space_that_the_template_would_strip(
    level_tokenizer: Tokenizer,
) -> None:
    ids = level_tokenizer.encode_messages([Message("user", " \n dog \n")])
    assert " \n dog \n" in level_tokenizer.decode(ids)


@given(parts=st.lists(st.sampled_from([*CONTROLS, "   ", "the", "\n", "<|", "think>"]), min_size=1))
def test_text_never_becomes_an_added_token(level_tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    ids = set(level_tokenizer.encode_text(text).tolist())
    backend = level_tokenizer.token_bytes._backend
    assert level_tokenizer.decode(level_tokenizer.encode_text(text)) == text
    assert not ids & {backend.token_to_id(control) for control in CONTROLS}


@given(parts=st.lists(st.sampled_from(["<s>", "</s>", "</", "s>", "the", " ", "\u6c49"]), min_size=1))
def test_text_never_becomes_a_control_token_that_the_vocabulary_itself_can_spell(
    pieces_tokenizer: Tokenizer, parts: list[str]
) -> None:
    ids = pieces_tokenizer.encode_text("".join(parts)).tolist()
    assert not set(ids) & {1, 2}


@given(text=st.text(st.sampled_from("the \u6c49\U0001f600"), min_size=1))
def test_sentence_pieces_detokenize_to_their_text(pieces_tokenizer: Tokenizer, text: str) -> None:
    ids = pieces_tokenizer.encode_text(text).tolist()
    detokenizer = Detokenizer(pieces_tokenizer)
    assert "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.flush() == text
    assert pieces_tokenizer.decode(ids) == text


def test_end_tokens_come_from_the_tokenizer_first_and_then_from_the_model(tmp_path: Path) -> None:
    directory = byte_level(tmp_path)
    before = Tokenizer.load(str(directory))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, before.end_id]}))
    assert before.eos_ids == (before.end_id,)
    assert Tokenizer.load(str(directory)).eos_ids == (before.end_id, 7)


def test_a_changed_chat_template_changes_the_fingerprint(tmp_path: Path) -> None:
    directory = byte_level(tmp_path)
    before = Tokenizer.load(str(directory)).fingerprint
    assert Tokenizer.load(str(directory)).fingerprint == before
    (directory / "chat_template.jinja").write_text(TEMPLATE + " ")
    assert Tokenizer.load(str(directory)).fingerprint != before
    assert len(before) <= 64


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('no system role') }}", "no system role"),
        ("<s>{{ messages[0].content }}", "leaves out message 1"),
        ("{{ missing.part }}", "refuses"),
    ],
)
def test_a_template_that_cannot_render_says_why(tmp_path: Path, template: str | None, reason: str) -> None:
    tokenizer = Tokenizer.load(str(byte_level(tmp_path, template=template)))
    with pytest.raises(ChatTemplateError, match=reason):
        tokenizer.encode_messages([Message("system", "a"), Message("user", "b")])


def test_a_template_that_does_not_compile_is_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        Tokenizer.load(str(byte_level(tmp_path, template="{% for %}")))


def test_a_tokenizer_whose_tokens_have_no_bytes_of_their_own_is_refused_at_load(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    save(backend, tmp_path, None, bos="[UNK]", eos="[UNK]")
    with pytest.raises(UnsupportedTokenizerError):
        Tokenizer.load(str(tmp_path))


@pytest.mark.parametrize("name", ["/nowhere/at/all", "nobody/no-such-model", "not a name"])
def test_a_tokenizer_that_is_not_here_is_an_error_and_no_download(name: str) -> None:
    with pytest.raises(TokenizerMissingError):
        tokenizer_directory(name)


def test_a_cache_that_cannot_be_written_gives_way_to_one_of_this_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    monkeypatch.delenv("LONGBATCH_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setenv("HOME", str(blocked))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert cache_directory() == tmp_path / f"longbatch-{os.getuid()}"


def test_nothing_is_said_of_pytorch_when_transformers_is_imported(tmp_path: Path) -> None:
    code = (
        "from jobs.prompts.tokenizer_files import ensure_default_tokenizer; ensure_default_tokenizer();"
        " import sys; assert 'transformers' in sys.modules"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRANSFORMERS_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"LONGBATCH_CACHE_DIR": str(tmp_path)},
        cwd=Path(__file__).parents[3],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr + done.stdout == ""
