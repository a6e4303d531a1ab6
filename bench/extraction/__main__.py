"""`python -m bench.extraction`: a table from 50 documents whose facts are known, by a small real model.

Each document is a letter about a lease: facts in sentences of several wordings, among others that say nothing
of them; a fifth of the facts is left out. Prints for each field how many values are right, wrong, missing and
invented, and how many quotes are in the text. When the time is up, of those documents that have ended.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx2

from bench.extraction.letters import SCHEMA, letters
from bench.extraction.scores import Extracted, report
from bench.figures import running_stack, until
from cli.stack.servers.llama_options import LlamaOptions, bundled_gguf

_CONTEXT: Final = 4096
_UNFINISHED: Final = ("preparing", "running")


def main() -> None:
    """Extract, and print how right the values are."""
    options = _arguments()
    began = time.monotonic()
    found = measured(options)
    sys.stdout.write(f"{report(found, seconds=time.monotonic() - began)}\n")
    if len(found) < options.documents:
        sys.stdout.write(f"the time was up: {options.documents - len(found)} documents had not ended\n")
    if options.json:
        lines = ({"text": letter.text, "facts": letter.facts, "found": each} for letter, each in found)
        options.json.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=50, help="at most 100")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slots", type=int, default=2, help="requests at once")
    parser.add_argument("--threads", type=int, default=2, help="of the engine")
    # A small model may repeat itself in a quote until its limit, a quarter above this.
    parser.add_argument("--length", type=int, default=128, help="tokens that a reply should have")
    parser.add_argument("--seconds", type=float, default=3600, help="report what has ended after so long")
    parser.add_argument("--json", type=Path, help="write each document and what was found here")
    return parser.parse_args()


def measured(options: argparse.Namespace) -> Sequence[Extracted]:
    """Extract the fields of all documents on a stack of its own; return those that ended in time."""
    made = letters(options.documents, seed=options.seed)
    engine = LlamaOptions(gguf=bundled_gguf(), context=_CONTEXT, slots=options.slots, threads=options.threads)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_stack(Path(folder) / "longbatch", engine) as (_, http),
    ):
        sent = [
            http.post("/v1/documents", content=each.text.encode(), params={"filename": f"{number}.txt"})
            for number, each in enumerate(made)
        ]
        ids = [each.raise_for_status().json()["id"] for each in sent]
        asked = {"documents": ids, "schema": SCHEMA, "length": options.length}
        listed = http.post("/v1/extractions", json=asked).raise_for_status().json()["data"]
        by_document = dict(zip((each["document"] for each in listed), made, strict=True))
        try:
            until(lambda: not _ended(http, is_ended=False), seconds=options.seconds, every=2.0)
        except TimeoutError:
            sys.stderr.write("the time is up\n")
        return [(by_document[each["document"]], each) for each in _ended(http, is_ended=True)]


def _ended(http: httpx2.Client, *, is_ended: bool) -> list[dict[str, Any]]:
    """List the extractions that have ended, or those that have not, the oldest first."""
    page = http.get("/v1/extractions", params={"limit": 100, "values": is_ended}).raise_for_status().json()
    return [each for each in reversed(page["data"]) if (each["state"] not in _UNFINISHED) == is_ended]


if __name__ == "__main__":
    main()
