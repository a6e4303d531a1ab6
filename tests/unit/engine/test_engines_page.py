"""docs/engines.md, the table of what is shown of each engine, names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "engines.md").read_text()
CASES = (
    "short prompt",
    "answer of 5,000 tokens",
    "stop string",
    "cancel while decoding",
    "cancel in the prefill",
    "disconnect",
    "bad request",
    "too long",
    "engine killed and restarted mid-answer",
    "worker killed with `kill -9` mid-answer",
)

FEATURES = (
    "requests",
    "streaming",
    "cancel",
    "refusal before output",
    "refusal in the stream",
    "capacity",
    "load",
    "LoRA",
    "seed",
    "structured output",
    "log probabilities",
    "end reasons",
)


def rows(first: str) -> list[list[str]]:
    """The cells of the table whose head begins with this word, without its head."""
    lines = PAGE[PAGE.index(f"| {first} |") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    text = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert len(named) > 20
    assert named - set(re.findall(r"^def (test_\w+)", text, re.MULTILINE)) == set()


def test_every_feature_has_a_grade_of_proof_for_each_kind() -> None:
    head, *features = rows("feature")
    assert [feature for feature, *_ in features] == list(FEATURES)
    for feature, *cells in features:
        assert len(cells) == len(head) - 1, feature
        graded = "^(server|code|ours|told|none|not reported)"
        assert all(re.search(graded, cell) for cell in cells), feature


def test_every_cell_names_a_test_or_says_that_nothing_shows_it() -> None:
    head, *cases = rows("case")
    assert tuple(case for case, *_ in cases) == CASES
    for case, *cells in cases:
        assert len(cells) == len(head) - 1, case
        # "as Triton" and "as trtllm-serve" point to the cells of a suite that they share.
        assert all(re.search("`test_|not shown|as Triton|as trtllm-serve", cell) for cell in cells), case
    assert len(rows("kind | sampling that it lacks")) > len(head)
