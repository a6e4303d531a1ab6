"""`python -m bench.depth_first`: when the summaries of many documents finish, in either order of their jobs.

The real stack with the local engine summarizes the same documents twice: with the jobs in the order in which
they are planned (depth-first), and with their ids exchanged before anything runs, so that all chunks come
before all joins, as a queue that knows nothing of documents would order them (breadth-first).
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from statistics import median
from uuid import UUID

import httpx2
import psycopg

from bench.figures import running_stack, until
from cli.stack.ready import INFERENCE_WORKER
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.stack import Stack
from jobs.ids import uuid7
from jobs.prompts.tokenizer_files import tokenizer_directory

_CHARS_PER_TOKEN = 4.3  # of the texts below
_POLL_SECONDS = 0.05
_LIMIT_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from the start of the engine's work, on the wall clock.

    Attributes:
        ends: of each summary, ascending.
        num_jobs: of all trees.
    """

    ends: Sequence[float]
    num_jobs: int


def main() -> None:
    """Run both orders; print the times of the first, the median and the last summary."""
    asked = _arguments()
    reference = "\n\n".join(topics[name] for name in sorted(topics))
    num_chars = int(asked.tokens * _CHARS_PER_TOKEN)
    texts = [_text(reference, place * 7919, num_chars) for place in range(asked.documents)]
    with tempfile.TemporaryDirectory(prefix="longbatch-depth-") as directory:
        tokenizer = tokenizer_directory(None)
        engine = EngineOptions(mode="extractive", tokenizer_dir=tokenizer, time_scale=asked.scale)
        with running_stack(Path(directory), engine) as (stack, http):
            run = partial(_run, stack, http, texts, asked.chunk)
            found = {name: run(name=name) for name in ("depth", "breadth")}
    _print(found, asked)


def _print(found: dict[str, Times], asked: argparse.Namespace) -> None:
    depth, breadth = found["depth"], found["breadth"]
    what = f"{asked.documents} documents of {asked.tokens} tokens in chunks of {asked.chunk}"
    where = f"engine at {asked.scale:g} times an A6000; load average {os.getloadavg()[0]:.1f}"
    lines = [
        f"{what}, {depth.num_jobs} jobs; {where}",
        f"{'summary':<10}{'depth-first':>14}{'breadth-first':>16}{'ratio':>9}",
    ]
    for name, pick in (("first", min), ("median", median), ("last", max)):
        mine, other = pick(depth.ends), pick(breadth.ends)
        lines.append(f"{name:<10}{mine:>12.1f} s{other:>14.1f} s{other / mine:>8.1f}x")
    sys.stdout.write("\n".join(lines) + "\n")


def _run(stack: Stack, http: httpx2.Client, texts: Sequence[str], chunk_tokens: int, *, name: str) -> Times:
    stack.hold(INFERENCE_WORKER)  # plan and count everything before the first job runs
    with psycopg.connect(stack.urls.database_url or "", autocommit=True) as database:

        def count(query: str) -> int:
            return int((database.execute(query, [made]).fetchone() or (0,))[0])

        documents = [_upload(http, text, f"{place}.txt") for place, text in enumerate(texts)]
        body = {
            "documents": documents,
            "chunk_tokens": chunk_tokens,
            "length": 200,
            "metadata": {"order": name},
        }
        answer = http.post("/v1/summaries", json=body)
        answer.raise_for_status()
        made = [UUID(hex=each["id"].removeprefix("sum_")) for each in answer.json()["data"]]
        until(lambda: not count(_NUM_UNPLANNED), seconds=_LIMIT_SECONDS, every=_POLL_SECONDS)
        until(lambda: not count(_NUM_UNCOUNTED), seconds=_LIMIT_SECONDS, every=_POLL_SECONDS)
        if name == "breadth":
            _reorder(database, made)
        num_jobs = count(_NUM_JOBS)
        stack.resume(INFERENCE_WORKER)
        (started,) = database.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone() or (0,)
        until(lambda: not count(_NUM_OPEN), seconds=_LIMIT_SECONDS, every=_POLL_SECONDS)
        ends = [float(end - started) for (end,) in database.execute(_ENDS, [made])]
    return Times(sorted(ends), num_jobs)


_NUM_UNPLANNED = "SELECT count(*) FROM summaries WHERE id = ANY(%s) AND state = 'preparing'"
_NUM_UNCOUNTED = "SELECT count(*) FROM jobs WHERE summary_id = ANY(%s) AND state = 'preparing'"
_NUM_OPEN = "SELECT count(*) FROM summaries WHERE id = ANY(%s) AND finalized_at IS NULL"
_NUM_JOBS = "SELECT count(*) FROM jobs WHERE summary_id = ANY(%s)"
_ENDS = "SELECT extract(epoch FROM finalized_at) FROM summaries WHERE id = ANY(%s) AND state = 'completed'"


def _reorder(database: psycopg.Connection, made: Sequence[UUID]) -> None:
    """Give all jobs new ids, by level and then chunk by chunk across all documents."""
    ordered = database.execute(
        "SELECT job_id FROM summary_nodes WHERE summary_id = ANY(%s)"
        " ORDER BY level, coalesce(chunk, number), summary_id",
        [made],
    ).fetchall()
    changes = [{"old": old, "new": uuid7()} for (old,) in ordered]
    with database.transaction(), database.cursor() as cursor:
        cursor.executemany(
            "UPDATE jobs SET id = %(new)s, summary_id = summary_id WHERE id = %(old)s", changes
        )
        cursor.executemany("UPDATE summary_nodes SET job_id = %(new)s WHERE job_id = %(old)s", changes)
        cursor.executemany("UPDATE summaries SET root_job_id = %(new)s WHERE root_job_id = %(old)s", changes)


def _upload(http: httpx2.Client, text: str, name: str) -> str:
    headers = {"Content-Type": "text/plain"}
    answer = http.post("/v1/documents", params={"filename": name}, content=text.encode(), headers=headers)
    answer.raise_for_status()
    return str(answer.json()["id"])


def _text(reference: str, start: int, num_chars: int) -> str:
    doubled = reference + reference
    start %= len(reference)
    return doubled[start : start + num_chars]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.depth_first", description=__doc__)
    parser.add_argument("--documents", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=20_000, help="tokens of each document")
    parser.add_argument("--chunk", type=int, default=5000, help="tokens of each chunk")
    parser.add_argument("--scale", type=float, default=8, help="how much faster than an A6000 the engine is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
