"""The documents of the demo, written as files: Python's own language reference, whole and in parts."""

import ast
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

# Long enough that the engine's pool of 131,072 tokens never holds two of them.
LONG_PROMPT_TOKENS = 90_000
# Twice the engine's context.
BOOK_TOKENS = 200_000
NUM_TOPICS = 24
# For a small model on the CPU, which reads some dozens of tokens a second.
SHORT_TOPICS = ("lambda", "while", "del", "assert")


def write_short(folder: Path) -> None:
    """Write a few short texts into an existing folder."""
    for name in SHORT_TOPICS:
        (folder / f"topic-{name.lower()}.txt").write_text(topics[name], encoding="utf-8")


def write(folder: Path, count: Callable[[str], int]) -> None:
    """Write a book above the context, one just below it, and texts of all lengths.

    Args:
        folder: an existing folder.
        count: counts the tokens of a text.
    """
    longest_first = sorted(topics, key=lambda name: -len(topics[name]))
    reference = _joined((topics[name] for name in longest_first), count, at_least=LONG_PROMPT_TOKENS)
    (folder / "language-reference.txt").write_text(reference, encoding="utf-8")
    parts = [*(topics[name] for name in longest_first), *_docstrings()]
    book = _joined(iter(parts), count, at_least=BOOK_TOKENS)
    (folder / "python-book.txt").write_text(book, encoding="utf-8")
    # Spread over all lengths, so that packing has work to do.
    step = max(1, len(longest_first) // NUM_TOPICS)
    for name in longest_first[::step][:NUM_TOPICS]:
        (folder / f"topic-{name.lower()}.txt").write_text(topics[name], encoding="utf-8")


def _joined(texts: Iterator[str], count: Callable[[str], int], *, at_least: int) -> str:
    """Join the first texts that together exceed `at_least` tokens."""
    parts: list[str] = []
    num_tokens = 0
    for text in texts:
        if num_tokens > at_least:
            break
        parts.append(text)
        num_tokens += count(text)
    return "\n\n".join(parts)


def _docstrings() -> Iterator[str]:
    """Yield the docstrings of each standard library module without importing it."""
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        tree = ast.parse(file.read_bytes())
        parts = [f"# {file.stem}"]
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                found = ast.get_docstring(node)
                name = file.stem if isinstance(node, ast.Module) else node.name
                parts += [f"## {name}\n\n{found}"] if found else []
        if len(parts) > 1:
            yield "\n\n".join(parts)
