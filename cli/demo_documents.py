"""The documents of the demo: a folder of the caller's, or Python's own language reference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

# Long enough that the engine's pool of 131,072 tokens never holds two of them.
LONG_PROMPT_TOKENS = 90_000
NUM_TOPICS = 24
TEXT_SUFFIXES = frozenset({".txt", ".md", ".rst", ".text"})


@dataclass(frozen=True, slots=True)
class Document:
    """A text to summarize.

    Attributes:
        name: shown in the table.
        text: its whole content.
    """

    name: str
    text: str


def from_folder(folder: Path) -> list[Document]:
    """Every text file below the folder, by name.

    Raises:
        ValueError: there is none, or one is no UTF-8; the message names it.
    """
    files = sorted(
        file for file in folder.rglob("*") if file.is_file() and file.suffix.lower() in TEXT_SUFFIXES
    )
    if not files:
        raise ValueError(f"{folder} holds no text file ({', '.join(sorted(TEXT_SUFFIXES))})")
    return [Document(str(file.relative_to(folder)), _read(file)) for file in files]


def language_reference(count: Callable[[str], int]) -> list[Document]:
    """Python's language reference: most of it joined into one long document, and its topics one by one.

    Args:
        count: tokens of a text, so that the joined document is long enough but not too long.
    """
    longest_first = sorted(topics, key=lambda name: -len(topics[name]))
    joined = _join(longest_first, count)
    # Spread over all lengths, so that packing has something to do.
    step = max(1, len(longest_first) // NUM_TOPICS)
    return [joined, *(Document(f"topic {name}", topics[name]) for name in longest_first[::step][:NUM_TOPICS])]


def _join(names: list[str], count: Callable[[str], int]) -> Document:
    parts: list[str] = []
    tokens = 0
    for name in names:
        if tokens > LONG_PROMPT_TOKENS:
            break
        parts.append(topics[name])
        tokens += count(topics[name])
    return Document(f"language reference ({len(parts)} topics)", "\n\n".join(parts))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text") from error


def chosen(folder: Path | None, count: Callable[[str], int]) -> Iterator[Document]:
    """The caller's folder if there is one, else the language reference."""
    yield from from_folder(folder) if folder else language_reference(count)
