"""`python -m bench.schemas.hostile`: a neighbour's requests while one tenant sends the worst schemas.

Three callers of one tenant send schemas of up to 64 KiB that are costly to compile, to one route after
another; no two are equal. Another tenant asks for `/health/live` and submits a short job, again and again.
Last come batches whose lines hold such schemas, while the other tenant waits for a batch of one line.
Postgres, Redis, the API, a service worker and all callers run here.
"""

import argparse
import http.client
import itertools
import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from bench import cpu, figures
from bench.figures import MODEL, Figure
from jobs.database import transaction

Json = dict[str, Any]
_KEYS: Final = {name: f"lb_{mark * 16}_{mark * 43}" for name, mark in (("quiet", "a"), ("hostile", "b"))}
_SETTINGS: Final = {
    "LONGBATCH_ENGINE__MODEL": MODEL,
    "LONGBATCH_LIMITS__MAX_JOBS": "100000000",
    "LONGBATCH_LIMITS__MAX_ENQUEUED_TOKENS": "1000000000000",
}
_NUM_CALLERS: Final = 3
_NUM_LINES: Final = 500
_LIMIT_S: Final = 300.0
_NUMBERS: Final = itertools.count()


def _pointers(names: Sequence[object]) -> list[Json]:
    return [{"$ref": f"#/$defs/{name}"} for name in names]


def _nested(keyword: str, depth: int, inner: Json) -> Json:
    for _ in range(depth):
        inner = {keyword: inner if keyword in ("items", "if", "not") else [inner]}
    return inner


def _mesh(num: int) -> Json:
    """Refer from each of these definitions to all others."""
    return {"$defs": {str(one): {"anyOf": _pointers(range(num))} for one in range(num)}, **_pointers([0])[0]}


def _doubling(levels: int, leaf: Json) -> Json:
    """Double the paths that lead to a leaf at each level."""
    steps = {str(level): {"allOf": _pointers([level + 1, level + 1])} for level in range(levels)}
    return {"$defs": {**steps, str(levels): leaf}, **_pointers([0])[0]}


SCHEMAS: Final[Mapping[str, Json]] = {
    "many large patterns": {"patternProperties": {rf"\S{{400}}{each}": {} for each in range(3200)}},
    "100 patterns of the largest size": {
        "patternProperties": {rf"\S{{19}}{each}": {} for each in range(100)}
    },
    "a long pattern of Unicode classes": {"pattern": r"(?i:\pL)" * 2040},
    "alternatives of Unicode classes": {"pattern": "|".join([r"\W"] * 5400)},
    "nested repetitions": {"pattern": "((((a{10}){10}){10}){10}){10}"},
    "patterns of names": {"propertyNames": {"anyOf": [{"pattern": rf"\W{{9}}{each}"} for each in range(99)]}},
    "a mesh of references": _mesh(50),
    "a mesh beside unevaluatedProperties": {"unevaluatedProperties": False, **_mesh(12)},
    "doubling beside unevaluatedItems": {"unevaluatedItems": False, **_doubling(24, {"pattern": r"\S{10}"})},
    "doubling": _doubling(200, {"type": "string"}),
    "a circle": {"$defs": {"0": _pointers([1])[0], "1": _pointers([0])[0]}, **_pointers([0])[0]},
    "a chain": _doubling(0, {}) | {"$defs": {str(each): _pointers([each + 1])[0] for each in range(1500)}},
    "a remote reference": {"allOf": [{"$ref": f"https://example.com/{each}"} for each in range(1000)]},
    "a remote metaschema": {"$schema": "https://example.com/schema"},
    "the metaschema": {
        "allOf": [{"unevaluatedItems": False, "$ref": "https://json-schema.org/draft/2020-12/schema"}] * 500
    },
    "many values": {"enum": [f"{each:05d}" for each in range(6000)]},
    "many equal objects": {"$schema": "http://json-schema.org/draft-04/schema#", "enum": [{"a": {}}] * 5000},
    "many properties": {"properties": {f"p{each}": {"type": "string"} for each in range(2000)}},
    "many branches": {"allOf": [{}] * 16_000},
    "many unevaluatedProperties": {"allOf": [{"unevaluatedProperties": False}] * 1500},
    "deep": _nested("items", 60, {"enum": list(range(9000))}),
    "too deep": _nested("not", 400, {}),
    "deep branches": _nested("anyOf", 30, {"anyOf": [{}] * 15_000}),
    "deep conditions": _nested("if", 30, {"allOf": [{"if": {}, "then": {}, "else": {}}] * 1500}),
    "many identifiers": {"$defs": {str(each): {"$id": f"http://x/{each}"} for each in range(1800)}},
    "dynamic anchors": {
        "$dynamicRef": "#a",
        "$defs": {str(n): {"$dynamicAnchor": f"a{n}", "$dynamicRef": f"#a{n + 1}"} for n in range(1000)},
    },
    "dependent schemas": {
        "dependentSchemas": {f"p{n}": {"dependentRequired": {"a": ["b"]}} for n in range(1200)}
    },
    "contains": {"allOf": [{"contains": {}, "minContains": 9999, "maxContains": 10_000}] * 900},
    "formats": {"allOf": [{"format": "regex"}, {"format": "idn-email"}] * 1500},
    "a large number": {"minimum": 10**4000, "multipleOf": 1e-300},
}  # fmt: skip


def _titled(schema: Json) -> Json:
    """Make it equal to no other one."""
    return {**schema, "title": str(next(_NUMBERS))}


def _form(schema: Json) -> Json:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    # The engine guides no answers, and a form that is not asked for in words would be refused unread.
    return {"response_format": form, "structured_fallback": "words"}


def _chat(schema: Json) -> Json:
    # No engine holds so long an answer: what is taken is refused as well, and nobody waits.
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 10**9}
    return {**body, **_form(schema)}


def _tools(schema: Json) -> Json:
    function = {"name": "f", "parameters": {**schema, "type": "object"}}
    chat = _chat(schema)
    del chat["response_format"], chat["structured_fallback"]
    return {**chat, "tools": [{"type": "function", "function": function}], "tool_choice": "none"}


def _response(schema: Json) -> Json:
    form = {"type": "json_schema", "name": "answer", "schema": schema}
    return {
        "model": MODEL,
        "input": "x",
        "max_output_tokens": 10**9,
        "text": {"format": form},
        "structured_fallback": "words",
    }


def _fields(schema: Json) -> Json:
    """Put the schema below a field; one of an extraction has a third of the length."""
    return {"schema": {"type": "object", "properties": {"a": schema, "b": {"$ref": "#/$defs/0"}}} | {
        name: schema[name] for name in ("$defs",) if name in schema
    }}  # fmt: skip


Body = Callable[[Json], Json | bytes]
ROUTES: Final[Mapping[str, tuple[str, Body]]] = {
    "POST /v1/jobs": ("/v1/jobs", lambda schema: {"input": "x", **_form(schema)}),
    "POST /v1/jobs with tools": ("/v1/jobs", lambda schema: {
        "input": "x", "tools": _tools(schema)["tools"], "tool_choice": "none"
    }),
    "POST /v1/jobs/bulk": ("/v1/jobs/bulk", lambda schema: b"\n".join(
        json.dumps({"input": "x", **_form(_titled(schema))}).encode() for _ in range(3)
    )),
    "POST /v1/chat/completions": ("/v1/chat/completions", _chat),
    "POST /v1/chat/completions with tools": ("/v1/chat/completions", _tools),
    "POST /v1/completions": ("/v1/completions", lambda schema: {
        "model": MODEL, "prompt": "x", "max_tokens": 10**9, "guided_json": schema,
        "structured_fallback": "words",
    }),
    "POST /v1/responses": ("/v1/responses", _response),
    "POST /v1/extractions": ("/v1/extractions", lambda schema: {
        "documents": ["doc_" + "0" * 32], **_fields(schema)
    }),
    "POST /v1/extractions/estimate": ("/v1/extractions/estimate", lambda schema: {
        "tokens": [1000], **_fields(schema)
    }),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures, and store them as JSON if asked; exit 1 on a missed goal."""
    parser = argparse.ArgumentParser(prog="python -m bench.schemas.hostile", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=8, help="length of each phase, of which there is one a route"
    )
    figures.run(parser, _measure, arguments)


def _measure(directory: Path, asked: argparse.Namespace) -> list[Figure]:
    found: list[Figure] = []
    with figures.servers(directory, pool_size=2) as servers:
        with transaction(servers.sessions) as session:
            for name, secret in _KEYS.items():
                figures.admit(session, name, secret)
            figures.register_engine(session, slots=4)
        with (
            figures.api(servers, **_SETTINGS) as (port, pid),
            figures.service_worker(servers, **_SETTINGS) as worker,
            psycopg.connect(servers.postgres_url, autocommit=True) as rows,
        ):
            figures.wait_for_tokenizer(port)
            _neighbour(port, 3)  # warm up
            before = cpu.memory_mib(pid, peak=False)
            cpu.clear_peak(pid)
            found += _phase("idle", _neighbour(port, asked.seconds))
            for name, (path, body) in ROUTES.items():
                with _callers(port, path, body, asked.seconds) as statuses:
                    times = _neighbour(port, asked.seconds)
                found += _phase(name, times)
                print(f"{name}: {dict(statuses)}", flush=True)  # noqa: T201
            found += _batches(port, rows, worker, seconds=asked.seconds)
            grown = cpu.memory_mib(pid) - before
            found.append(Figure("growth of the API process at its peak", grown, "MiB", "< 100"))
            apart = sum(cpu.memory_mib(each) for each in cpu.descendants(pid))
            found.append(Figure("memory of the processes that it started", apart, "MiB"))
    return found


def _phase(name: str, times: Mapping[str, Sequence[float]]) -> Iterator[Figure]:
    for what, seconds in times.items():
        yield Figure(f"{name}: slowest {what}", max(seconds), "s", "< 0.5")
        yield Figure(f"{name}: median {what}", statistics.median(seconds), "s")


def _batches(port: int, rows: psycopg.Connection, worker: int, *, seconds: float) -> Iterator[Figure]:
    """Measure estimates of hostile lines, and how long a batch of the neighbour waits for theirs."""
    alone = _expansion(port, rows)
    before = cpu.memory_mib(worker, peak=False)
    cpu.clear_peak(worker)
    hostile = _upload(
        port, "hostile", [_chat(schema) for schema in itertools.islice(_distinct(), _NUM_LINES)]
    )
    path = "/v1/batches/estimate"
    body = {"input_file_id": hostile, "endpoint": "/v1/chat/completions"}
    with _callers(port, path, lambda _: body, seconds) as statuses:
        yield from _phase(f"POST {path}", _neighbour(port, seconds))
    print(f"{path}: {dict(statuses)}", flush=True)  # noqa: T201
    for _ in range(_NUM_CALLERS):
        _send(port, "hostile", "/v1/batches", {**body, "completion_window": "24h"})
    yield Figure("a neighbour's batch of one line, alone", alone, "s")
    yield Figure("and behind three hostile batches", _expansion(port, rows), "s")
    yield Figure("growth of the service worker at its peak", cpu.memory_mib(worker) - before, "MiB", "< 100")


def _expansion(port: int, rows: psycopg.Connection) -> float:
    """Return the seconds until the line of a batch of the neighbour has become a job."""
    file_id = _upload(port, "quiet", [{"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}])
    began = time.monotonic()
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch_id = _send(port, "quiet", "/v1/batches", body)["id"].removeprefix("batch_")
    query = "SELECT is_expanded FROM batches WHERE id = CAST(%s AS uuid)"

    def is_expanded() -> bool:
        found = rows.execute(query, [batch_id]).fetchone()
        return found is not None and bool(found[0])

    figures.until(is_expanded, seconds=_LIMIT_S, every=0.05)
    return time.monotonic() - began


def _upload(port: int, whose: str, bodies: Sequence[Json]) -> str:
    lines = [
        {"custom_id": str(at), "method": "POST", "url": "/v1/chat/completions", "body": each}
        for at, each in enumerate(bodies)
    ]
    content = b"\n".join(json.dumps(each).encode() for each in lines)
    mark = "-" * 30
    parts = (
        f'--{mark}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    )
    form = parts.encode() + content + f"\r\n--{mark}--\r\n".encode()
    sent = _send(port, whose, "/v1/files", form, kind=f"multipart/form-data; boundary={mark}")
    return str(sent["id"])


def _send(
    port: int, whose: str, path: str, body: Json | bytes | None, *, kind: str = "application/json"
) -> Json:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LIMIT_S)
    headers = {"Authorization": f"Bearer {_KEYS[whose]}", "Content-Type": kind}
    raw = json.dumps(body).encode() if isinstance(body, dict) else body
    connection.request("GET" if body is None else "POST", path, raw, headers)
    answer = connection.getresponse()
    found: Json = json.loads(answer.read())
    if answer.status >= 300:
        raise RuntimeError(f"{path} got status {answer.status}: {found}")
    return found


def _distinct() -> Iterator[Json]:
    """Yield the schemas again and again, no two of them equal."""
    return map(_titled, itertools.cycle(SCHEMAS.values()))


@contextmanager
def _callers(port: int, path: str, body: Body, seconds: float) -> Iterator[Counter[int]]:
    """Send hostile schemas to a route, from threads, until the time is over; yield the statuses to come."""
    statuses: Counter[int] = Counter()
    until = time.monotonic() + seconds

    def call() -> None:
        headers = {"Authorization": f"Bearer {_KEYS['hostile']}", "Content-Type": "application/json"}
        for schema in _distinct():
            if time.monotonic() > until:
                return
            sent = body(schema)
            raw = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LIMIT_S)
            connection.request("POST", path, raw, headers)
            statuses[connection.getresponse().status] += 1
            connection.close()

    threads = [threading.Thread(target=call) for _ in range(_NUM_CALLERS)]
    for each in threads:
        each.start()
    yield statuses
    for each in threads:
        each.join()


def _neighbour(port: int, seconds: float) -> dict[str, list[float]]:
    """Ask for `/health/live` and submit a short job by turns; return the seconds of each."""
    times: dict[str, list[float]] = {"/health/live": [], "small submit": []}
    headers = {"Authorization": f"Bearer {_KEYS['quiet']}", "Content-Type": "application/json"}
    until = time.monotonic() + seconds
    for number in itertools.count():
        if (began := time.monotonic()) > until:
            return times
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LIMIT_S)
        connection.request("GET", "/health/live")
        connection.getresponse().read()
        submitted = time.monotonic()
        times["/health/live"].append(submitted - began)
        body = json.dumps({"input": f"{number} of {began}", "max_tokens": 16})
        connection.request("POST", "/v1/jobs", body, headers)
        status = connection.getresponse().status
        if status != http.client.ACCEPTED:
            raise RuntimeError(f"a small submit got status {status}")
        times["small submit"].append(time.monotonic() - submitted)
        connection.close()
        time.sleep(0.02)
    raise AssertionError


if __name__ == "__main__":
    main()
