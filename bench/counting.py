"""Cost of counting and splitting a text: memory per megabyte, and time to split relative to counting.

`python -m bench.counting [--chars 2000000] [--kinds numbers,kanji]`; each kind runs in its own process.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from typing import Final

from bench.cpu import clear_peak, memory_mib
from jobs.prompts.tokenizer import Tokenizer
from jobs.summaries import chunking

_CHUNK_TOKENS: Final = 15_000
_MIB: Final = 2**20
_KINDS: Final = ("english", "numbers", "kanji", "emoji", "base64", "one letter")


def text_of(kind: str, num_chars: int) -> str:
    """Make a text of this kind, the same one each time."""
    chance = random.Random(1)  # noqa: S311  # no secret
    if kind == "numbers":
        return ",".join(f"{chance.random() * 1000:.4f}" for _ in range(num_chars // 8))[:num_chars]
    if kind == "kanji":
        return "".join(map(chr, chance.choices(range(0x4E00, 0x9FA6), k=num_chars)))
    if kind == "emoji":
        return "".join(map(chr, chance.choices(range(0x1F600, 0x1F650), k=num_chars)))
    if kind == "base64":
        return "".join(
            chance.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", k=num_chars)
        )
    if kind == "one letter":
        return "a" * num_chars
    words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs,", "and", "12", "others."]
    return " ".join(chance.choices(words, k=num_chars // 4))[:num_chars]


def measure(kind: str, *, cuts: bool) -> dict[str, object]:
    """Count the text on standard input, optionally split it, and report the cost."""
    tokenizer = Tokenizer.load()
    tokenizer.count_text("A first text, so that everything is loaded. " * 3000)
    clear_peak("self")  # exclude loading the tokenizer from the peak
    before = memory_mib("self")
    text = sys.stdin.buffer.read().decode()
    started = time.process_time()
    num_tokens = tokenizer.count_text(text)
    count_s = time.process_time() - started
    found: dict[str, object] = {
        "kind": kind,
        "mib": len(text.encode()) / _MIB,
        "tokens": num_tokens,
        "count_s": count_s,
        "count_added_mib": memory_mib("self") - before,
    }
    if cuts:
        started = time.process_time()
        starts = getattr(tokenizer, "token_starts", None)
        named = {"starts": starts} if starts else {}
        chunks = chunking.cut(text, tokenizer.count_text, chunk_tokens=_CHUNK_TOKENS, **named)
        found |= {
            "chunks": len(chunks),
            "cut_over_count": (time.process_time() - started) / count_s,
            "cut_added_mib": memory_mib("self") - before,
        }
    return found


def main() -> int:
    """Print a line for each kind of text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chars", type=int, default=2_000_000)
    parser.add_argument("--kinds", default=",".join(_KINDS))
    parser.add_argument("--no-cut", action="store_true", help="count only")
    parser.add_argument("--here", action="store_true", help="in this process, as JSON")
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(measure(asked.kinds, cuts=not asked.no_cut)))  # noqa: T201
        return 0
    for kind in asked.kinds.split(","):
        command = [
            sys.executable,
            "-m",
            "bench.counting",
            "--here",
            "--kinds",
            kind,
            "--chars",
            str(asked.chars),
        ]
        command += ["--no-cut"] * asked.no_cut
        text = text_of(kind, asked.chars).encode()
        output = subprocess.run(command, check=True, input=text, stdout=subprocess.PIPE, timeout=3600).stdout
        print(_line(json.loads(output)), flush=True)  # noqa: T201
    return 0


def _line(found: dict[str, float]) -> str:
    line = (
        f"{found['kind']:>10}  {found['mib']:6.1f} MiB  {found['tokens']:>10,} tokens"
        f"  counted in {found['count_s']:6.1f} s of CPU time, +{found['count_added_mib']:,.0f} MiB"
        f" ({found['count_added_mib'] / found['mib']:.1f} per MiB)"
    )
    if "chunks" in found:
        line += f"  cut in {found['cut_over_count']:.2f}x the time, +{found['cut_added_mib']:,.0f} MiB"
    return line


if __name__ == "__main__":
    sys.exit(main())
