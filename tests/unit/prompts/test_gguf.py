"""GGUF headers: what is read from them, and what is refused."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from gguf_support import smollm2, write_tiny_model
from jobs.prompts.gguf import Gguf, GgufError, GgufValue
from jobs.prompts.gguf_tokenizer import end_ids, ensure_gguf_tokenizer
from jobs.prompts.messages import Message
from jobs.prompts.tokenizer import Tokenizer


def written(file: Path) -> Path:
    """A file with a value of every type, by the format's own library."""
    writer = gguf.GGUFWriter(file, "llama")
    for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{name}")(name, 7)
    writer.add_float32("float32", 0.5)
    writer.add_float64("float64", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("string", "naïve 希望")
    writer.add_array("strings", ["a", "", "\u0120b"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("nested", [[1, 2], [3]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file


def with_values(**changes: GgufValue) -> Gguf:
    """SmolLM2's header with other values; `__` in a name is a dot."""
    found = smollm2()
    changed = {name.replace("__", "."): value for name, value in changes.items()}
    return replace(found, values={**found.values, **changed})


def test_every_type_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = Gguf.read(written(tmp_path / "all.gguf"))
    numbers = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
    assert [found.number(name) for name in numbers] == [7] * 8
    assert (found.values["float32"], found.values["float64"]) == (0.5, 0.1)
    assert found.flag("bool", default=False)
    assert found.text("string") == "naïve 希望"
    assert found.texts("strings") == ["a", "", "\u0120b"]
    assert found.numbers("numbers") == [1, -2, 3]
    assert found.values["nested"] == [[1, 2], [3]]


def test_a_missing_value_is_none_and_another_type_is_no_value(tmp_path: Path) -> None:
    found = Gguf.read(written(tmp_path / "all.gguf"))
    assert (found.text("uint8"), found.number("string"), found.number("bool")) == (None, None, None)
    assert (found.text("no"), found.texts("no"), found.flag("no", default=True)) == (None, [], True)
    with pytest.raises(GgufError, match=r"has no llama\.context_length"):
        _ = found.context_length


@pytest.mark.parametrize("cut", [0, 3, 4, 12, 30, 60, 200])
def test_a_file_that_ends_too_early_is_refused(tmp_path: Path, cut: int) -> None:
    file = written(tmp_path / "cut.gguf")
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(GgufError, match=r"cut\.gguf is no GGUF file"):
        Gguf.read(file)


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04" + bytes(100),
        b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**40),
        b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**50),
        b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77),
        b"GGUF" + struct.pack("<IQQQ1sIQ1s", 3, 0, 1, 1, b"k", 8, 1, b"\xff"),
        b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 2000,
    ],
    ids=["other", "version", "keys", "key", "array", "type", "utf-8", "nested"],
)
def test_no_header_takes_more_than_it_says(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)
    with pytest.raises(GgufError, match="is no GGUF file"):
        Gguf.read(file)


def test_a_header_of_more_than_128_mib_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "large.gguf"
    with file.open("wb") as large:
        large.write(b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 0, 2**28))
        large.truncate(2**30)  # no more than its first block is on the disk
    with pytest.raises(GgufError, match="larger than"):
        Gguf.read(file)


def test_a_context_of_nothing_is_no_context() -> None:
    for length in (0, -1):
        with pytest.raises(GgufError, match=r"no llama\.context_length"):
            _ = with_values(llama__context_length=length).context_length


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"no\.gguf: No such file"):
        Gguf.read(tmp_path / "no.gguf")


def test_the_small_models_template_and_ends_are_read(tmp_path: Path) -> None:
    built = Tokenizer.load(str(ensure_gguf_tokenizer(smollm2(), tmp_path)))
    assert smollm2().context_length == 8192
    assert built.eos_ids[:2] == (2, 0)  # <|im_end|>, <|endoftext|>
    assert built.bos_id is None
    prompt = built.encode_messages([Message("system", "Be brief."), Message("user", "<|im_end|>")])
    assert prompt[0] == 1
    assert list(prompt).count(2) == 2  # the template's; the user's stays text
    assert built.decode(prompt) == "system\nBe brief.\nuser\n<|im_end|>\nassistant\n"


def test_a_tokenizer_is_built_once(tmp_path: Path) -> None:
    first = ensure_gguf_tokenizer(smollm2(), tmp_path)
    built_at = (first / "tokenizer.json").stat().st_mtime_ns
    assert ensure_gguf_tokenizer(smollm2(), tmp_path) == first
    assert (first / "tokenizer.json").stat().st_mtime_ns == built_at
    other = with_values(tokenizer__chat_template="{{ messages[0].content }}")
    assert ensure_gguf_tokenizer(other, tmp_path) != first
    assert not list(tmp_path.glob(".building-*"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer__ggml__pre": "nosuch"}, "splits text as 'nosuch'"),
        ({"tokenizer__ggml__pre": 3}, "splits text as 'nothing'"),
        ({"tokenizer__ggml__model": "t5"}, "kind 't5'.*LONGBATCH_TOKENIZER__PATH"),
        ({"tokenizer__ggml__model": "llama"}, "tokens, types and scores are not as many"),
        ({"tokenizer__ggml__merges": []}, r"no tokenizer\.ggml\.merges"),
        ({"tokenizer__ggml__tokens": ["a", "a"]}, "the same token twice"),
        ({"tokenizer__ggml__merges": ["a nosuchtoken"]}, r"tokenizer\.ggml\.merges.*out of vocabulary"),
        ({"tokenizer__ggml__merges": ["a"]}, r"tokenizer\.ggml\.merges.*out of vocabulary"),
    ],
)
def test_a_tokenizer_that_cannot_be_built_is_refused_by_name(
    tmp_path: Path, changes: dict[str, GgufValue], words: str
) -> None:
    with pytest.raises(GgufError, match=words):
        ensure_gguf_tokenizer(with_values(**changes), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spaces", "is_refused"),
    [(["\n ", " \n\n"], True), ([" \n", "\n "], True), (["\n\n", "\n\n\n", "  ", "    "], False)],
)
def test_user_defined_white_space_that_can_overlap_otherwise_than_runs_do_is_refused(
    tmp_path: Path, *, spaces: list[str], is_refused: bool
) -> None:
    real = smollm2()
    found = with_values(
        tokenizer__ggml__tokens=[*real.texts("tokenizer.ggml.tokens"), *spaces],
        tokenizer__ggml__token_type=[*real.numbers("tokenizer.ggml.token_type"), *[4] * len(spaces)],
    )
    if is_refused:
        with pytest.raises(GgufError, match="which can overlap"):
            ensure_gguf_tokenizer(found, tmp_path)
    else:
        ensure_gguf_tokenizer(found, tmp_path)


def test_types_without_a_token_and_negative_numbers_name_no_token(tmp_path: Path) -> None:
    kinds: list[GgufValue] = [*smollm2().numbers("tokenizer.ggml.token_type"), *[3] * 5]
    kinds[100] = 3
    found = with_values(tokenizer__ggml__token_type=kinds, tokenizer__ggml__eos_token_id=-1)
    assert -1 not in end_ids(found)
    assert Tokenizer.load(str(ensure_gguf_tokenizer(found, tmp_path))).decode([100]) == ""


def test_a_text_begins_with_a_token_of_its_own_where_the_file_says_so(tmp_path: Path) -> None:
    adding = with_values(tokenizer__ggml__add_bos_token=True)
    built = Tokenizer.load(str(ensure_gguf_tokenizer(adding, tmp_path)))
    assert built.encode_plain("a").tolist() == [1, *built.encode_text("a").tolist()]
    # Where the file says nothing, as the way to split has it.
    unsaid = {**smollm2().values, "tokenizer.ggml.pre": "llama-bpe"}
    del unsaid["tokenizer.ggml.add_bos_token"]
    built = Tokenizer.load(str(ensure_gguf_tokenizer(replace(smollm2(), values=unsaid), tmp_path)))
    assert built.bos_id == 1


def test_an_answer_shows_user_defined_tokens_and_hides_control_tokens(tmp_path: Path) -> None:
    kinds = [int(kind) for kind in smollm2().numbers("tokenizer.ggml.token_type")]
    kinds[5] = 4
    built = Tokenizer.load(
        str(ensure_gguf_tokenizer(with_values(tokenizer__ggml__token_type=[*kinds]), tmp_path))
    )
    assert built.decode([5]) == "<file_sep>"
    assert built.decode([1]) == ""
    assert 5 not in built.encode_text("<file_sep>").tolist()


def test_ends_are_found_by_number_and_by_text() -> None:
    tokens: list[GgufValue] = ["a", "<|end|>", "<|return|>", "<|call|>", "<|eot_id|>", "x"]
    harmony = with_values(tokenizer__ggml__tokens=tokens, tokenizer__ggml__eos_token_id=2)
    assert end_ids(harmony) == [2, 3, 4]  # there, <|end|> only ends a message
    other = with_values(
        tokenizer__ggml__tokens=tokens[:2], tokenizer__ggml__eos_token_id=99, tokenizer__ggml__eot_token_id=0
    )
    assert end_ids(other) == [0, 1]


def test_a_written_model_has_the_vocabulary_of_the_real_one(tmp_path: Path) -> None:
    tiny = Gguf.read(write_tiny_model(tmp_path / "tiny.gguf", pre="smollm", tokenizer__chat_template="x"))
    assert tiny.texts("tokenizer.ggml.merges") == smollm2().texts("tokenizer.ggml.merges")
    directory = ensure_gguf_tokenizer(tiny, tmp_path)
    assert json.loads((directory / "tokenizer_config.json").read_text())["chat_template"] == "x"
