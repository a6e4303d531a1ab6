"""`python -m bench.junk_bodies`: long prompts of one tenant during junk of another.

Three callers of one tenant post JSON that is no request, of each kind for a while. Another tenant submits
prompts of 300 kB one after another, by a route that parses them in a thread of the API and by one that does
so in its other process. Everything runs on this machine: on few cores the callers take part of the processor.
"""

import argparse
import http.client
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench import figures
from bench.figures import MODEL, Figure
from bench.noisy_neighbour import callers, p99
from jobs.database import transaction

_KEYS: Final = {name: f"lb_{mark * 16}_{mark * 43}" for name, mark in (("neighbour", "c"), ("junk", "d"))}
_PROMPT: Final = "A line of a long report. " * 12_000
_JUNK_BYTES: Final = 8_000_000
_NO_QUOTAS: Final = {
    "LONGBATCH_LIMITS__MAX_JOBS": "100000000",
    "LONGBATCH_LIMITS__MAX_ENQUEUED_TOKENS": "1000000000000",
}
_ROUTES: Final[dict[str, Callable[[str], dict[str, object]]]] = {
    "/v1/jobs": lambda text: {"input": text, "max_tokens": 16},
    "/v1/responses": lambda text: {"model": MODEL, "input": text, "background": True},
}
_GOAL: Final = 3.0


def _repeated(start: str, piece: Callable[[int], str], end: str) -> bytes:
    pieces: list[str] = []
    num_bytes = 0
    while num_bytes < _JUNK_BYTES:
        pieces.append(piece(len(pieces)))
        num_bytes += len(pieces[-1]) + 1
    return (start + ",".join(pieces) + end).encode()


_JUNK: Final[dict[str, Callable[[], bytes]]] = {
    "unknown names": lambda: _repeated("{", lambda number: f'"a{number}":1', "}"),
    "unknown names in messages": lambda: _repeated(
        '{"model":"bench","messages":[', lambda _: '{"a":1}', "]}"
    ),
    "messages of the wrong type": lambda: _repeated('{"model":"bench","messages":[', lambda _: "1", "]}"),
    "a prompt before an unknown name": lambda: json.dumps(
        {"model": "bench", "messages": [{"role": "user", "content": "word " * 1_590_000}], "a": 1}
    ).encode(),
    # Of 0.4 MB: as many as are parsed at all.
    "32,000 unknown names in a message": lambda: json.dumps(
        {"model": "bench", "messages": [{f"a{number}": 1 for number in range(32_000)}]}
    ).encode(),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, and store them as JSON if asked; exit 1 on a missed goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.junk_bodies", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="length of each phase")
    figures.run(parser, _measure, arguments)


def _measure(directory: Path, asked: argparse.Namespace) -> list[Figure]:
    with figures.servers(directory, pool_size=2) as servers:
        with transaction(servers.sessions) as session:
            for name, secret in _KEYS.items():
                figures.admit(session, name, secret)
            figures.register_engine(session, slots=4)
        with figures.api(servers, **_NO_QUOTAS) as (port, _):
            figures.wait_for_tokenizer(port)
            _submit_for(port, 2)  # warm up
            found: list[Figure] = []
            for kind, make in _JUNK.items():
                idle = _submit_for(port, asked.seconds)
                (body := directory / "junk.json").write_bytes(make())
                junk = callers(port, _KEYS["junk"], "/v1/chat/completions", body, seconds=asked.seconds)
                with junk as running:
                    loaded = _submit_for(port, asked.seconds)
                    statuses: dict[str, int] = json.loads(running.communicate()[0])
                if set(statuses) != {"400"}:
                    raise RuntimeError(f"{kind} got statuses {statuses}")
                found.append(Figure(f"{kind}: bodies refused", statuses["400"] / asked.seconds, "/s"))
                for path, times in loaded.items():
                    ratio = p99(times) / p99(idle[path])
                    found += _of_phase(path, "just before", idle[path])
                    found += _of_phase(path, "during", times)
                    found.append(Figure(f"{path}: p99 relative to alone", ratio, "x", f"< {_GOAL:g}"))
    return found


def _of_phase(path: str, phase: str, times: Sequence[float]) -> list[Figure]:
    return [
        Figure(f"{path} {phase}: p50 of {len(times)}", statistics.median(times), "ms"),
        Figure(f"{path} {phase}: p99", p99(times), "ms"),
    ]


def _submit_for(port: int, seconds: float) -> dict[str, list[float]]:
    """Submit long prompts by each route in turn over one connection; return milliseconds of each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Authorization": f"Bearer {_KEYS['neighbour']}", "Content-Type": "application/json"}
    times: dict[str, list[float]] = {path: [] for path in _ROUTES}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for path, request in _ROUTES.items():
            body = json.dumps(request(f"{time.monotonic_ns()} {_PROMPT}"))
            began = time.monotonic()
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status not in {http.client.OK, http.client.ACCEPTED}:
                raise RuntimeError(f"a long prompt got status {answer.status}: {said[:300]!r}")
            times[path].append((time.monotonic() - began) * 1000)
    connection.close()
    return times


if __name__ == "__main__":
    main()
