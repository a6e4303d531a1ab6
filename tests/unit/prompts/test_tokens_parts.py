"""Long texts encoded in windows, token for token as they are when they are encoded whole."""

import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from jobs.errors import CountingInterruptedError, PromptTooLongError, PromptUncountableError
from jobs.prompts import uncut_text
from jobs.prompts.encoding import PlainEncoder
from jobs.prompts.text_windows import TokenSpan
from jobs.prompts.tokenizer_files import LLAMA3_PATTERN, ensure_default_tokenizer
from jobs.prompts.uncut_text import ChildLimits
from support import eventually

# Everything that the patterns of words tell apart, in short runs and in long ones.
RUNS = ["a", "the", "Zürich", "'s", "'LL", "1", "2345", "0.5,", "-12.75\n", " ", "  ", "\n", "\r\n", "\t"]
RUNS += [
    "\u00a0",
    "!",
    "...",
    "=",
    "/",
    "汉字",
    "語",
    "かな",
    "カナ",
    "한글",
    "😀",
    "👩\u200d🔬",
    "🏳\ufe0f\u200d🌈",
]
RUNS += [
    "\r\n \t",
    " \n",
    "e\u0301",
    "\u0301",
    "שלום",
    "مرحبا",
    "\u202e",
    "\x00",
    "\x1c",
    "²",
    "QUJDREVG+/8=",
]
PATTERNS = {
    "gpt2": None,
    "llama3": LLAMA3_PATTERN,
    "qwen2": LLAMA3_PATTERN.replace("{1,3}", ""),
    "gpt4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
WHOLE = 10**9


def small_vocabulary(pattern: str | None) -> tokenizers.Tokenizer:
    """Short tokens, so that a window need not be long to hold several of the longest."""
    found = tokenizers.Tokenizer(models.BPE(ignore_merges=pattern is not None))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")] if pattern else []
    found.pre_tokenizer = pre_tokenizers.Sequence([*split, level]) if split else level
    found.decoder = decoders.ByteLevel()
    chance = random.Random(7)  # noqa: S311  # the same texts each time
    corpus = ["".join(chance.choice(RUNS) * chance.choice([1, 1, 3]) for _ in range(40)) for _ in range(60)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        initial_alphabet=alphabet,
        max_token_length=4,
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    found.train_from_iterator(corpus, trainer)
    return found


def encoder_of(found: tokenizers.Tokenizer, **limits: object) -> PlainEncoder:
    serialized = found.to_str()
    return PlainEncoder(tokenizers.Tokenizer.from_str(serialized), serialized.encode(), **limits)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=PATTERNS)
def pair(request: pytest.FixtureRequest) -> tuple[PlainEncoder, PlainEncoder]:
    """One encoder of tiny windows, and one that encodes whole."""
    found = small_vocabulary(PATTERNS[request.param])
    return encoder_of(found, window_chars=150), encoder_of(found, window_chars=WHOLE, whole_bytes=WHOLE)


def llama(**limits: Any) -> PlainEncoder:  # noqa: ANN401  # of each field's type
    serialized = (ensure_default_tokenizer() / "tokenizer.json").read_bytes()
    return PlainEncoder(tokenizers.Tokenizer.from_buffer(serialized), serialized, **limits)


@pytest.fixture(scope="module")
def in_windows() -> PlainEncoder:
    return llama(window_chars=4096)


@pytest.fixture(scope="module")
def whole() -> PlainEncoder:
    return llama(window_chars=WHOLE, whole_bytes=WHOLE)


def parts_of(encoder: PlainEncoder, text: str) -> list[TokenSpan]:
    return encoder._collect(text, lambda _text, part: part)


run = st.tuples(
    st.sampled_from(RUNS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    st.sampled_from([1, 1, 1, 2, 7, 60, 250]),
)
texts = st.lists(run, max_size=8).map(lambda runs: "".join(text * times for text, times in runs))
mixtures = st.tuples(
    st.lists(st.sampled_from(RUNS), min_size=2, max_size=5), st.randoms(use_true_random=False)
).map(lambda drawn: "".join(drawn[1].choice(drawn[0]) for _ in range(150)))


@settings(max_examples=80)
@given(text=texts | mixtures)
def test_a_text_in_windows_has_the_tokens_of_the_whole(
    pair: tuple[PlainEncoder, PlainEncoder], text: str
) -> None:
    in_windows, whole = pair
    assert in_windows.encode(text).tolist() == whole.encode(text).tolist()
    assert in_windows.count(text) == len(whole.encode(text))


def _generated() -> Iterator[tuple[str, str]]:
    chance = random.Random(3)  # noqa: S311  # the same texts each time
    yield "numbers", ",".join(f"{chance.random() * 1000:.4f}" for _ in range(6000))
    yield "kanji", "".join(chr(chance.randint(0x4E00, 0x9FA5)) for _ in range(30_000))
    yield "genes", "".join(chance.choice("ACGT") for _ in range(30_000))
    yield "base64", "".join(chance.choice("ABCxyz0189+/") for _ in range(30_000))
    yield (
        "emoji",
        "".join(chance.choice(["😀", "👩\u200d🔬", "🏳\ufe0f\u200d🌈", "🧿"]) for _ in range(15_000)),
    )
    yield "digits", "".join(chance.choice("0123456789") for _ in range(30_000))
    for character in ("a", "語", "=", "é", "😀", " ", "\n", "1", "\t", "\r\n", "\r\n \t", " \n"):
        yield f"one {character!r} repeated", "x " + character * 30_000 + " y"
    for lead in ("x", "x=", "x\u3000"):
        yield f"blanks after {lead!r} and before a line end", (lead + " " * 30_000 + "\n") * 2
    yield "kanji, then marks, blanks and words", ("漢字" * 5000 + "=" * 9000 + " " * 9000 + "\nword ") * 2


GENERATED = list(_generated())


@pytest.mark.parametrize(("name", "text"), GENERATED, ids=lambda value: value if len(value) < 40 else "")
def test_texts_without_words_have_the_tokens_of_the_whole(
    in_windows: PlainEncoder, whole: PlainEncoder, name: str, text: str
) -> None:
    assert in_windows.encode(text).tolist() == whole.encode(text).tolist(), name


@pytest.mark.parametrize(("name", "text"), GENERATED, ids=lambda value: value if len(value) < 40 else "")
def test_no_part_of_a_text_is_long(in_windows: PlainEncoder, name: str, text: str) -> None:
    parts = parts_of(in_windows, text)
    assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == len(text)
    longest = max(part.end - part.start for part in parts)
    assert longest <= 4096 * 3 // 2, name


def test_composed_characters_are_counted_as_the_tokenizer_composes_them() -> None:
    found = small_vocabulary(LLAMA3_PATTERN)
    found.normalizer = normalizers.NFC()
    text = ("e\u0301" * 50 + "漢字 " + "\u1112\u1161\u11ab" * 40) * 20
    in_windows, whole = (
        encoder_of(found, window_chars=150),
        encoder_of(found, window_chars=WHOLE, whole_bytes=WHOLE),
    )
    assert in_windows.encode(text).tolist() == whole.encode(text).tolist()
    assert len(parts_of(in_windows, text)) > 10


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        None,
        pre_tokenizers.Split(" ", "merged_with_previous"),
        pre_tokenizers.Metaspace(),
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(r"(?<=a)b|\s+|\S"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
    ],
)
def test_a_long_text_of_an_unknown_tokenizer_is_encoded_whole_by_a_child(
    pre_tokenizer: pre_tokenizers.PreTokenizer | None,
) -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, " ": 1, "a ": 2}, [("a", " ")]))
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    text = "a a a a" * 100
    whole = encoder_of(backend).encode(text).tolist()
    in_child = encoder_of(backend, window_chars=2, whole_bytes=8)
    assert in_child.encode(text).tolist() == whole
    assert len(parts_of(in_child, text)) == 1


@pytest.mark.parametrize(
    ("limits", "named"),
    [(ChildLimits(memory_mb=40), "40 MiB"), (ChildLimits(seconds=0.01), "0.01 seconds")],
)
def test_a_text_that_the_child_cannot_encode_names_the_limit(limits: ChildLimits, named: str) -> None:
    encoder = encoder_of(tokenizers.Tokenizer(models.BPE({"a": 0}, [])), whole_bytes=8, limits=limits)
    with pytest.raises(PromptUncountableError, match=named):
        encoder.encode("a" * 600_000)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_that_is_ended_from_outside_says_nothing_of_the_text(number: signal.Signals) -> None:
    encoder = encoder_of(tokenizers.Tokenizer(models.BPE({"a": 0}, [])), whole_bytes=8)
    before = children()
    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(encoder.encode, "a" * 3_000_000)
        (child,) = eventually(lambda: children() - before)
        os.kill(child, number)
        with pytest.raises(CountingInterruptedError) as caught:
            counted.result(60)
    assert caught.value.retryable


def test_a_child_that_cannot_be_started_says_nothing_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = encoder_of(tokenizers.Tokenizer(models.BPE({"a": 0}, [])), whole_bytes=8)
    monkeypatch.setattr(uncut_text, "_ROOT", Path("/nowhere"))
    with pytest.raises(CountingInterruptedError):
        encoder.encode("a" * 1000)


def children() -> set[int]:
    found = set[int]()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended since
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def test_counting_stops_where_a_limit_is_passed(whole: PlainEncoder, in_windows: PlainEncoder) -> None:
    text = "Some words, and  more\n\nof them\u3002 " * 3000
    total = len(whole.encode(text))
    assert in_windows.count(text, limit=total) == total
    with pytest.raises(PromptTooLongError) as caught:
        in_windows.count(text, limit=total // 4)
    assert total // 4 < caught.value.at_least < total // 4 + 4096
    assert caught.value.details["prompt_tokens_at_least"] == caught.value.at_least


@pytest.mark.parametrize(("name", "text"), GENERATED, ids=lambda value: value if len(value) < 40 else "")
def test_a_text_never_has_fewer_tokens_than_its_lower_bound(
    whole: PlainEncoder, name: str, text: str
) -> None:
    assert 0 < whole._lengths.least_tokens(text) <= len(whole.encode(text)), name


@settings(max_examples=40)
@given(text=texts)
def test_the_lower_bound_holds_for_any_text(pair: tuple[PlainEncoder, PlainEncoder], text: str) -> None:
    assert pair[1]._lengths.least_tokens(text) <= len(pair[1].encode(text))


def test_what_can_never_fit_is_refused_before_it_is_encoded() -> None:
    encoder = llama()
    assert encoder._windows is not None
    encoder._tokenizer.model = models.BPE()  # has no tokens any more
    with pytest.raises(PromptTooLongError) as caught:
        encoder.encode("😀🧿" * 100_000, limit=131_072)
    assert caught.value.at_least >= 131_073


def test_tokens_of_a_part_stand_for_its_characters(in_windows: PlainEncoder) -> None:
    text = "漢字" * 9000 + "words and 12 numbers. " * 900
    for part in parts_of(in_windows, text):
        num_bytes = int(np.sum(in_windows._lengths.of_bytes[part.ids]))
        assert num_bytes == len(text[part.start : part.end].encode())


@pytest.mark.parametrize(("name", "text"), GENERATED, ids=lambda value: value if len(value) < 40 else "")
def test_starts_of_tokens_are_those_of_the_tokenizer(in_windows: PlainEncoder, name: str, text: str) -> None:
    starts = in_windows.starts(text)
    (encoding,) = in_windows._tokenizer.encode_batch([text], add_special_tokens=False)
    exact = np.array([start for start, _ in encoding.offsets])
    assert len(starts) == len(exact), name
    assert set((starts - exact).tolist()) <= {0, 1}, "1: a token that begins within a character"
