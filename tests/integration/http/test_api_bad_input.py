import json
from collections.abc import Iterator

import httpx2
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from api_server import error_of
from jobs.models import Job

# No job has this id; constant, as it stands in the names of tests.
ABSENT = "job_01a1fdd84e6071e6bb093810c269e989"

MIB = 2**20


def body(**fields: object) -> bytes:
    return json.dumps({"input": "a text", **fields}).encode()


WRONG_BODIES: list[tuple[str, bytes, str | None, str]] = [
    # name, body, param, code
    ("empty input", body(input=""), "input", "invalid_value"),
    ("no input", b"{}", "input", "missing_field"),
    ("no messages", body(input=[]), "input", "invalid_value"),
    ("input as a number", body(input=5), "input", "invalid_value"),
    ("input as an object", body(input={"text": "a"}), "input", "invalid_value"),
    ("input as null", body(input=None), "input", "invalid_value"),
    ("content as a number", body(input=[{"role": "user", "content": 5}]), "input.0.content", "invalid_value"),
    ("unknown role", body(input=[{"role": "function", "content": "a"}]), "input.0.role", "invalid_value"),
    (
        "unknown field of a message",
        body(input=[{"role": "user", "content": "a", "name": "b"}]),
        "input.0.name",
        "unknown_field",
    ),
    ("unknown field", body(maxtokens=5), "maxtokens", "unknown_field"),
    ("half a character as a name", b'{"input":"a","\\ud800":1}', None, "invalid_value"),
    ("unprintable name", b'{"input":"a","\\u0000":1}', "?", "unknown_field"),
    ("unknown task", body(task="translate"), "task", "invalid_value"),
    ("instructions as a list", body(instructions=["a"]), "instructions", "invalid_value"),
    ("empty instructions", body(instructions=""), "instructions", "invalid_value"),
    ("max_tokens 0", body(max_tokens=0), "max_tokens", "invalid_value"),
    ("max_tokens -1", body(max_tokens=-1), "max_tokens", "invalid_value"),
    ("max_tokens 10^9", body(max_tokens=10**9), "max_tokens", "invalid_value"),
    ("max_tokens 131073", body(max_tokens=131_073), "max_tokens", "invalid_value"),
    ("max_tokens 10^40", body(max_tokens=10**40), "max_tokens", "invalid_value"),
    ("max_tokens 1.5", body(max_tokens=1.5), "max_tokens", "invalid_value"),
    ("max_tokens as text", body(max_tokens="5"), "max_tokens", "invalid_value"),
    ("max_tokens true", body(max_tokens=True), "max_tokens", "invalid_value"),
    ("max_tokens null", body(max_tokens=None), "max_tokens", "invalid_value"),
    ("temperature -0.1", body(temperature=-0.1), "temperature", "invalid_value"),
    ("temperature 2.1", body(temperature=2.1), "temperature", "invalid_value"),
    ("temperature NaN", body(temperature=float("nan")), "temperature", "invalid_value"),
    ("temperature Infinity", body(temperature=float("inf")), "temperature", "invalid_value"),
    ("temperature 1e999", b'{"input":"a","temperature":1e999}', "temperature", "invalid_value"),
    ("temperature true", body(temperature=True), "temperature", "invalid_value"),
    ("top_p 0", body(top_p=0), "top_p", "invalid_value"),
    ("top_p 1.1", body(top_p=1.1), "top_p", "invalid_value"),
    ("top_k 0", body(top_k=0), "top_k", "invalid_value"),
    ("top_k 1025", body(top_k=1025), "top_k", "invalid_value"),
    ("seed -1", body(seed=-1), "seed", "invalid_value"),
    ("seed 2^63", body(seed=2**63), "seed", "invalid_value"),
    ("five stops", body(stop=list("abcde")), "stop", "invalid_value"),
    ("an empty stop", body(stop=["a", ""]), "stop.1", "invalid_value"),
    ("a long stop", body(stop=["a" * 257]), "stop.0", "invalid_value"),
    ("unknown priority", body(priority="urgent"), "priority", "invalid_value"),
    ("priority as a number", body(priority=1), "priority", "invalid_value"),
    ("a long custom_id", body(custom_id="a" * 257), "custom_id", "invalid_value"),
    ("an empty custom_id", body(custom_id=""), "custom_id", "invalid_value"),
    ("17 pairs of metadata", body(metadata={str(n): "a" for n in range(17)}), "metadata", "invalid_value"),
    ("metadata of numbers", body(metadata={"a": 5}), "metadata", "invalid_value"),
    ("metadata as a list", body(metadata=["a"]), "metadata", "invalid_value"),
    ("a long metadata key", body(metadata={"a" * 65: "b"}), "metadata", "invalid_value"),
    ("a long metadata value", body(metadata={"a": "b" * 513}), "metadata", "invalid_value"),
    ("NUL in metadata", body(metadata={"a": "\0"}), "metadata", "invalid_value"),
    ("unknown window", body(completion_window="2h"), "completion_window", "invalid_value"),
    ("a private webhook", body(webhook_url="https://127.0.0.1/"), "webhook_url", "invalid_webhook_url"),
    ("a private webhook in IPv6", body(webhook_url="https://[::1]/"), "webhook_url", "invalid_webhook_url"),
    ("a webhook on this host", body(webhook_url="https://localhost/"), "webhook_url", "invalid_webhook_url"),
    ("a plain webhook", body(webhook_url="http://example.com/"), "webhook_url", "invalid_webhook_url"),
    ("a webhook that is no URL", body(webhook_url="hello"), "webhook_url", "invalid_webhook_url"),
    ("NUL", body(input="a\0b"), "input", "invalid_value"),
    ("NUL in a message", body(input=[{"role": "user", "content": "\0"}]), "input.0.content", "invalid_value"),
    ("a raw NUL", b'{"input":"a\0b"}', "input", "invalid_value"),
    ("a lone surrogate", b'{"input":"a\\ud800b"}', "input", "invalid_value"),
    ("a lone low surrogate", b'{"input":"a\\udc00b"}', "input", "invalid_value"),
    ("a surrogate in UTF-8", b'{"input":"a\xed\xa0\x80b"}', "input", "invalid_value"),
    (
        "a lone surrogate in a message",
        b'{"input":[{"role":"user","content":"\\ud83d"}]}',
        "input.0.content",
        "invalid_value",
    ),
    ("a lone surrogate in a pair", b'{"input":"a","metadata":{"\\ud800":"b"}}', "metadata", "invalid_value"),
    ("no UTF-8", b'{"input":"\xff"}', None, "invalid_json"),
    ("a raw line feed", b'{"input":"a\nb"}', None, "invalid_json"),
    ("nothing", b"", None, "invalid_json"),
    ("half an object", b'{"input":"a"', None, "invalid_json"),
    ("no JSON", b"hello", None, "invalid_json"),
    ("a list", b"[]", None, "invalid_json"),
    ("null", b"null", None, "invalid_json"),
    ("two objects", b'{"input":"a"}{"input":"b"}', None, "invalid_json"),
    ("100,000 open brackets", b"[" * 100_000, None, "invalid_json"),
    ("deep input", b'{"input":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, "invalid_json"),
    ("deep unknown field", b'{"input":"a","x":' + b'{"a":' * 30_000, None, "invalid_json"),
    ("too many names", b'{"input":"a","x":' + b'{"a":' * 100_000, None, "invalid_value"),
    ("a number of 100,000 digits", b'{"input":"a","seed":' + b"9" * 100_000 + b"}", None, "invalid_json"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "param", "code"), [row[1:] for row in WRONG_BODIES], ids=[row[0] for row in WRONG_BODIES]
)
def test_a_wrong_body_is_refused_with_its_field(
    http: httpx2.Client, raw: bytes, param: str | None, code: str
) -> None:
    answer = http.post("/v1/jobs", content=raw)
    error = error_of(answer)
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
    assert answer.headers["x-request-id"]
    with_key = http.post("/v1/jobs", content=raw, headers={"Idempotency-Key": "a"})
    assert (with_key.status_code, with_key.json()) == (400, answer.json()), "the framework's way"
    assert http.get("/health/live").status_code == 200


def test_wrong_bodies_leave_no_job_behind(http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    for _, raw, _, _ in WRONG_BODIES:
        http.post("/v1/jobs", content=raw)
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 0


def test_an_error_never_repeats_the_value(http: httpx2.Client) -> None:
    canary = "canary-7f3a"
    for raw in (
        body(input=[{"role": canary, "content": "a"}]),
        body(task=canary),
        body(max_tokens=canary),
        body(input=canary + "\0"),
        body(webhook_url=f"https://{canary}@example.com/"),
        b'{"input":"' + canary.encode() + b'\\ud800"}',
        canary.encode(),
    ):
        assert canary not in http.post("/v1/jobs", content=raw).text


def chunks(size: int) -> Iterator[bytes]:
    for _ in range(size // MIB):
        yield b"a" * MIB


@pytest.mark.parametrize("content", [b"a" * (9 * MIB), chunks(9 * MIB)], ids=["Content-Length", "chunked"])
def test_a_body_over_the_limit_is_413(http: httpx2.Client, content: bytes | Iterator[bytes]) -> None:
    answer = http.post("/v1/jobs", content=content)
    assert (answer.status_code, error_of(answer)["code"]) == (413, "request_too_large")
    assert http.get("/health/live").status_code == 200


WRONG_REQUESTS: list[tuple[str, str, int, str | None, str]] = [
    # method, path, status, param, code
    ("GET", "/v1/jobs?after=job_nothing", 400, "after", "invalid_value"),
    ("GET", f"/v1/jobs?after={ABSENT}", 400, "after", "invalid_value"),
    ("GET", "/v1/jobs?after=%00", 400, "after", "invalid_value"),
    ("GET", "/v1/jobs?limit=0", 400, "limit", "invalid_value"),
    ("GET", "/v1/jobs?limit=101", 400, "limit", "invalid_value"),
    ("GET", "/v1/jobs?limit=ten", 400, "limit", "invalid_value"),
    ("GET", "/v1/jobs?state=done", 400, "state", "invalid_value"),
    ("GET", "/v1/jobs?task=translate", 400, "task", "invalid_value"),
    ("GET", "/v1/jobs?custom_id=%00", 400, "custom_id", "invalid_value"),
    ("GET", "/v1/jobs?stat=queued", 400, "stat", "unknown_field"),
    ("GET", f"/v1/jobs/{ABSENT}", 404, None, "not_found"),
    ("GET", f"/v1/jobs/{ABSENT}?wait=1", 404, None, "not_found"),
    ("GET", f"/v1/jobs/{ABSENT}?wait=61", 400, "wait", "invalid_value"),
    ("GET", f"/v1/jobs/{ABSENT}?wait=-1", 400, "wait", "invalid_value"),
    ("GET", f"/v1/jobs/{ABSENT}?wait=nan", 400, "wait", "invalid_value"),
    ("GET", "/v1/jobs/job_nothing", 404, None, "not_found"),
    ("GET", "/v1/jobs/%00", 404, None, "not_found"),
    ("GET", "/v1/jobs/job_%ff", 404, None, "not_found"),
    ("GET", f"/v1/jobs/{ABSENT}/result", 404, None, "not_found"),
    ("POST", f"/v1/jobs/{ABSENT}/cancel", 404, None, "not_found"),
    ("DELETE", f"/v1/jobs/{ABSENT}", 404, None, "not_found"),
    ("GET", "/v1/nothing", 404, None, "unknown_route"),
    ("GET", "/v1/jobs/", 404, None, "unknown_route"),
    ("PUT", "/v1/jobs", 405, None, "method_not_allowed"),
    ("PATCH", f"/v1/jobs/{ABSENT}", 405, None, "method_not_allowed"),
]


@pytest.mark.parametrize(("method", "path", "status", "param", "code"), WRONG_REQUESTS)
def test_a_wrong_request_is_refused_in_the_one_shape(
    http: httpx2.Client, method: str, path: str, status: int, param: str | None, code: str
) -> None:
    answer = http.request(method, path)
    error = error_of(answer)
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code)
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("key", ["", "a" * 256, "tab\there", "caf\u00e9"])
def test_a_wrong_idempotency_key_is_refused(http: httpx2.Client, key: str) -> None:
    answer = http.post("/v1/jobs", content=body(), headers={b"Idempotency-Key": key.encode("latin-1")})
    assert (answer.status_code, error_of(answer)["param"]) == (400, "Idempotency-Key")


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"{}", None),
        (b'{"metadata":{}}', None),
        (b'{"state":"done"}', "state"),
        (b'{"states":["queued"]}', "states"),
        (b'{"metadata":{"a":1}}', "metadata"),
        (b"", None),
    ],
)
def test_a_wrong_filter_cancels_nothing(http: httpx2.Client, raw: bytes, param: str | None) -> None:
    kept = http.post("/v1/jobs", content=body()).json()["id"]
    answer = http.post("/v1/jobs/cancel", content=raw)
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)
    assert http.get(f"/v1/jobs/{kept}").json()["state"] == "queued"
