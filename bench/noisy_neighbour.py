"""`python -m bench.noisy_neighbour`: small submits of one tenant during long bodies of another.

Three callers of one tenant post chats of 8 MB of emoji, which no engine accepts, one after another. Another
tenant submits a short job again and again. Postgres, Redis, the API, the callers and the client run here,
each in its own process, so on few cores the callers take some of the processor as well.
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import cpu, figures
from bench.figures import Figure
from jobs.database import transaction

_KEYS: Final = {name: f"lb_{mark * 16}_{mark * 43}" for name, mark in (("quiet", "a"), ("noisy", "b"))}
_NUM_CALLERS: Final = 3
_NO_QUOTAS: Final = {
    "LONGBATCH_LIMITS__MAX_JOBS": "100000000",
    "LONGBATCH_LIMITS__MAX_ENQUEUED_TOKENS": "1000000000000",
}
_GOAL: Final = 3.0
# Posts the body of a file again and again over several connections; prints the number of responses by status.
_CALLERS: Final = """
import collections, http.client, json, pathlib, sys, threading, time
port, key, num_callers, seconds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
path, body = sys.argv[5], pathlib.Path(sys.argv[6]).read_bytes()
headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
until, statuses = time.monotonic() + seconds, collections.Counter()
def call():
    while time.monotonic() < until:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", path, body, headers)
        statuses[connection.getresponse().status] += 1
        connection.close()
threads = [threading.Thread(target=call) for _ in range(num_callers)]
print("ready", flush=True)
for each in threads: each.start()
for each in threads: each.join()
print(json.dumps(statuses))
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, and store them as JSON if asked; exit 1 on a missed goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.noisy_neighbour", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="length of each of the two phases")
    figures.run(parser, _measure, arguments)


def _measure(directory: Path, asked: argparse.Namespace) -> list[Figure]:
    with figures.servers(directory, pool_size=2) as servers:
        with transaction(servers.sessions) as session:
            for name, secret in _KEYS.items():
                figures.admit(session, name, secret)
            figures.register_engine(session, slots=4)
        with figures.api(servers, **_NO_QUOTAS) as (port, pid):
            figures.wait_for_tokenizer(port)
            _submit_for(port, 2)  # warm up
            idle, idle_mb = _submit_for(port, asked.seconds), _peak_mb(pid)
            chat = {"model": "bench", "messages": [{"role": "user", "content": chr(0x1F600) * 1_950_000}]}
            (body := directory / "chat.json").write_text(json.dumps(chat, ensure_ascii=False))
            with callers(port, _KEYS["noisy"], "/v1/chat/completions", body, seconds=asked.seconds) as noisy:
                busy, busy_mb = _submit_for(port, asked.seconds), _peak_mb(pid)
                statuses: dict[str, int] = json.loads(noisy.communicate()[0])
    if set(statuses) != {"400"}:
        raise RuntimeError(f"the long chats got statuses {statuses}")
    ratio = p99(busy) / p99(idle)
    return [
        Figure("submits of 3.5 kB without other callers", len(idle) / asked.seconds, "/s"),
        Figure("p99", p99(idle), "ms"),
        Figure("long chats refused meanwhile", sum(statuses.values()), ""),
        Figure("submits during them", len(busy) / asked.seconds, "/s"),
        Figure("p99", p99(busy), "ms"),
        Figure("p99 relative to that without other callers", ratio, "x", f"< {_GOAL:g}"),
        Figure("largest memory of the API before the long chats", idle_mb, "MiB"),
        Figure("and with them", busy_mb, "MiB"),
    ]


@contextmanager
def callers(
    port: int, key: str, path: str, body: Path, *, seconds: float
) -> Iterator["subprocess.Popen[str]"]:
    """Post a file's bytes in three loops during the block; they print the responses by status as JSON."""
    numbers = [str(_NUM_CALLERS), str(seconds)]
    command = [sys.executable, "-c", _CALLERS, str(port), key, *numbers, path, str(body)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None  # noqa: S101  # it is a pipe
        running.stdout.readline()
        yield running
    finally:
        running.kill()
        running.wait()


def _submit_for(port: int, seconds: float) -> list[float]:
    """Submit short jobs one by one over one connection; return milliseconds of each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"Authorization": f"Bearer {_KEYS['quiet']}", "Content-Type": "application/json"}
    times: list[float] = []
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        body = json.dumps({"input": f"{len(times)} " + "word " * 700, "max_tokens": 16})
        connection.request("POST", "/v1/jobs", body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != http.client.ACCEPTED:
            raise RuntimeError(f"a small submit got status {answer.status}")
        times.append((time.monotonic() - began) * 1000)
    connection.close()
    return times


def p99(times: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(times, n=100, method="inclusive")[98]


def _peak_mb(pid: int) -> float:
    """Add up the peak memory of a process and its descendants, in MiB."""
    return sum(map(cpu.memory_mib, [pid, *cpu.descendants(pid)]))


if __name__ == "__main__":
    main()
