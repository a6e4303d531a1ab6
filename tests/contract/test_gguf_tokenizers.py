"""A tokenizer built from a GGUF file gives the ids of llama.cpp's own, on the real server."""

import http.client
import json
import random
from pathlib import Path
from typing import cast

import pytest

from cli.stack.errors import StackError
from cli.stack.servers.llama_cpp import EmbeddedLlamaCpp
from entry_points import REFERENCE
from gguf_support import random_texts, write_sentencepiece_model, write_tiny_model
from jobs.prompts.gguf_splitters import SPLITTERS, TokenSplitter
from jobs.prompts.tokenizer import Tokenizer
from llama_support import running_llama

# One name of each way to split.
_NAMES = sorted({splitter: name for name, splitter in SPLITTERS.items()}.values())
# llama.cpp approximates the case of letters that are not ASCII there.
_APPROXIMATED = {"tekken", "gpt-4o", "llama4", "kanana2"}


def server_ids(server: EmbeddedLlamaCpp, texts: list[str]) -> list[list[int]]:
    """The ids of each text, over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    found = []
    for text in texts:
        body = {"content": text, "add_special": False, "parse_special": False}
        connection.request("POST", "/tokenize", json.dumps(body))
        found.append(json.loads(connection.getresponse().read())["tokens"])
    connection.close()
    return found


def assert_same_ids(server: EmbeddedLlamaCpp, texts: list[str]) -> None:
    built = Tokenizer.load(str(server.tokenizer))
    for text, ids in zip(texts, server_ids(server, texts), strict=True):
        assert built.encode_text(text).tolist() == ids, repr(text)
        assert built.decode(ids) == text


def test_the_small_model_counts_hundreds_of_texts_as_llama_cpp_does(tmp_path: Path) -> None:
    with running_llama(tmp_path / "llama", context=512) as server:
        server.check_tokenizer()
        assert_same_ids(server, random_texts(400, seed=1, any_character=True))


@pytest.mark.parametrize("pre", _NAMES)
def test_every_way_to_split_is_llama_cpps_own(tmp_path: Path, pre: str) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", pre=pre)
    with running_llama(tmp_path / "llama", gguf=model, context=512) as server:
        server.check_tokenizer()
        texts = random_texts(100, seed=2, any_character=pre not in _APPROXIMATED)
        assert_same_ids(server, texts)


@pytest.mark.parametrize("adds_space", [True, False], ids=["space before", "as it is"])
def test_sentencepieces_are_counted_as_llama_cpp_does(tmp_path: Path, *, adds_space: bool) -> None:
    model = write_sentencepiece_model(tmp_path / "tiny.gguf", REFERENCE[:60_000], adds_space=adds_space)
    chosen = random.Random(3)  # noqa: S311  # no secret
    repeating = ["".join(chosen.choices("ab- ", k=chosen.randint(1, 60))) for _ in range(400)]
    real = [REFERENCE[at : at + 2000] for at in range(60_000, 120_000, 2000)]
    with running_llama(tmp_path / "llama", gguf=model, context=512) as server:
        server.check_tokenizer()
        texts = [*random_texts(300, seed=3, any_character=True), *repeating, *real]
        assert_same_ids(server, [text.replace("\u2581", "_") for text in texts])  # it comes back as a space


@pytest.mark.parametrize("adds_space", [True, False], ids=["space before", "as it is"])
def test_user_defined_white_space_is_counted_as_llama_cpp_does_and_other_user_defined_text_stays_text(
    tmp_path: Path, *, adds_space: bool
) -> None:
    """Gemma has such runs, and tokens for HTML, which llama.cpp takes out of any text."""
    spaces = ["\n" * number for number in range(1, 9)] + ["  ", "   ", "    ", "\t\t"]
    model = write_sentencepiece_model(
        tmp_path / "tiny.gguf", REFERENCE[:60_000], adds_space=adds_space, user_defined=[*spaces, "<table>"]
    )
    chosen = random.Random(4)  # noqa: S311  # no secret
    parts = [*spaces, *"ab the\n\t", " the", "word "]
    texts = ["".join(chosen.choices(parts, k=chosen.randint(1, 25))) for _ in range(400)]
    with running_llama(tmp_path / "llama", gguf=model, context=512) as server:
        server.check_tokenizer()
        built = Tokenizer.load(str(server.tokenizer))
        assert [built.encode_text(text).tolist() for text in texts] == server_ids(server, texts)
        (token,) = server_ids(server, ["<table>"])[0][-1:]
    assert token not in built.encode_text("<table>")


def test_a_file_that_names_the_wrong_way_to_split_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", pre="gpt-2")
    monkeypatch.setitem(cast("dict[str, TokenSplitter]", SPLITTERS), "gpt-2", SPLITTERS["llama-bpe"])
    with (
        running_llama(tmp_path / "llama", gguf=model, context=512) as server,
        pytest.raises(StackError, match="does not give the tokens"),
    ):
        server.check_tokenizer()
