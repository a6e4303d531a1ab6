"""Models without weights for vLLM: published shapes, and the marks that set the length of each answer."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.gpu.shapes import LLAMA_8B
from bench.stand.documents import Author
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import tokenizer_directory

END_ID: Final = 128_009  # Llama 3.1's <|eot_id|>
# The published dimensions of Qwen2.5 32B with Llama's layers and vocabulary: 256 KiB of KV a token.
DENSE_32B: Final[dict[str, Any]] = LLAMA_8B | {
    "hidden_size": 5120,
    "intermediate_size": 27_648,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
}
SHAPES: Final = {"8b": LLAMA_8B, "32b": DENSE_32B}


@dataclass(frozen=True, slots=True)
class Marks:
    """How `[[tokens=N]]` in a prompt looks as token ids.

    Attributes:
        head: ids before the number.
        close: id after the number.
        suffix: ids between the mark and the prompt's end.
        digits: text of each id that the number may consist of.
        allowed: ids that answers consist of.
        end: id that ends an answer.
    """

    head: list[int]
    close: int
    suffix: int
    digits: dict[int, str]
    allowed: list[int]
    end: int = END_ID


def find_marks(author: Author) -> Marks:
    """Read the marks from the tokenizer that writes the prompts."""
    mark = author.tokenizer.encode_text(" [[tokens=1234]]").tolist()
    numbers = [f"{number:0{width}d}" for width in (1, 2, 3) for number in range(10**width)]
    encoded = {text: author.tokenizer.encode_text(f"={text}]]").tolist() for text in numbers}
    return Marks(
        head=mark[:3],
        close=mark[-1],
        suffix=author.num_ids_after_mark,
        digits={ids[1]: text for text, ids in encoded.items() if len(ids) == 3},
        allowed=author.word_ids,
    )


def main() -> None:
    """Write `marks.json` and one model directory for each shape into a folder."""
    folder = Path(sys.argv[1])
    author = Author(Tokenizer.load(str(tokenizer_directory(None))))
    (folder / "marks.json").write_text(json.dumps(asdict(find_marks(author))))
    for name, shape in SHAPES.items():
        (folder / f"model-{name}").mkdir(exist_ok=True)
        (folder / f"model-{name}" / "config.json").write_text(json.dumps(shape, indent=1))


if __name__ == "__main__":
    main()
