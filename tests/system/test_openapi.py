"""Requests made from the API's own description, right and wrong: no server error, nothing undocumented."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from schemathesis.checks import not_a_server_error
from schemathesis.core.errors import InvalidSchema
from schemathesis.core.result import Ok, Result
from schemathesis.generation.meta import CoveragePhaseData
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.app import create_app
from cli.stack.stack import Stack
from jobs.settings import BrokerSettings, DatabaseSettings, Settings
from openai_support import CHAT, MODEL, chat_line, jsonl

T = TypeVar("T")

pytestmark = pytest.mark.timeout(120)

_SETTINGS = Settings(
    database=DatabaseSettings(url=SecretStr("postgresql://a@b/c")),
    broker=BrokerSettings(url=SecretStr("redis://a")),
)
_ASKING = {
    *("/v1/chat/completions", "/v1/completions", "/generate", "/generate_stream", "/v1/responses"),
    "/v1/embeddings",
}
# Often five boundary cases break or use one field in one way: one is sent, with `LONGBATCH_PROVE=1` all are.
_SENDS_ALL = os.environ.get("LONGBATCH_PROVE") == "1"
_NAMED = {"job_id", "file_id", "batch_id", "document_id", "response_id"}
_LINES = "application/x-ndjson"
_EXAMPLES = settings(max_examples=8, derandomize=True, suppress_health_check=list(HealthCheck))
_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]

schema = schemathesis.openapi.from_dict(create_app(_SETTINGS).openapi())
schemathesis.openapi.media_type(
    _LINES,
    st.lists(
        st.one_of(
            st.binary(max_size=99),
            st.fixed_dictionaries({"input": st.text()}, optional={"seed": st.integers()}).map(
                lambda fields: json.dumps(fields).encode()
            ),
        )
    ).map(b"\n".join),
)


@schemathesis.serializer(_LINES)
def lines_as_bytes(_context: schemathesis.SerializationContext, value: object) -> bytes:
    """Whatever was made for a body of lines, sent as it is."""
    match value:
        case bytes():
            return value
        case str():
            return value.encode(errors="replace")
        case _:
            return json.dumps(value).encode()


class Caller(requests.Session):
    """Speaks to the API, and makes what paths and bodies name."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.trust_env = False
        self.url = stack.urls.api_url or ""
        self.headers["Authorization"] = f"Bearer {stack.urls.api_key}"
        self.turns: Counter[str] = Counter()
        self.asked: set[object] = set()
        self.there: dict[str, str] = {}  # what the present operation's cases name

    def is_turn(self, name: str, *, every: int) -> bool:
        """One time in so many of this name."""
        self.turns[name] += 1
        return self.turns[name] % every == 0

    def is_repetition(self, case: schemathesis.Case) -> bool:
        """Whether an earlier case differed only by a value of the same kind."""
        if _SENDS_ALL or case.meta is None or not isinstance(case.meta.phase.data, CoveragePhaseData):
            return False
        found = case.meta.phase.data
        kind = (
            *(case.operation.label, case.media_type, case.meta.generation.mode, found.scenario),
            *(found.description, found.location, found.parameter, found.parameter_location),
        )
        is_known = kind in self.asked
        self.asked.add(kind)
        return is_known

    def there_is(self, name: str) -> str:
        """Return the id of a job, a file, …, which an earlier case of the operation may have changed."""
        if name not in self.there:
            self.there[name] = getattr(self, name)()
        return self.there[name]

    def job_id(self) -> str:
        return str(self.post(f"{self.url}/v1/jobs", json={"input": "Hello", "max_tokens": 4}).json()["id"])

    def file_id(self) -> str:
        content = ("in.jsonl", jsonl([chat_line("a", max_tokens=1)]))
        made = self.post(f"{self.url}/v1/files", files={"file": content}, data={"purpose": "batch"})
        return str(made.json()["id"])

    def document_id(self) -> str:
        made = self.post(f"{self.url}/v1/documents", data=b"The text.", params={"filename": "a.txt"})
        return str(made.json()["id"])

    def response_id(self) -> str:
        asked: Any = {"model": MODEL, "input": "Hello", "max_output_tokens": 4, "background": True}
        return str(self.post(f"{self.url}/v1/responses", json=asked).json()["id"])

    def batch_id(self) -> str:
        asked = {"input_file_id": self.file_id(), "endpoint": CHAT, "completion_window": "1h"}
        return str(self.post(f"{self.url}/v1/batches", json=asked).json()["id"])


@pytest.fixture(scope="module")
def caller(stack: Stack) -> Iterator[Caller]:
    with Caller(stack) as made:
        yield made


def valid(result: Result[T, InvalidSchema]) -> T:
    """What schemathesis made of an operation, whose description it understands."""
    assert isinstance(result, Ok), result.err()
    return result.ok()


@pytest.fixture(scope="module")
def checks() -> dict[str, Callable[..., None]]:
    """Of each operation, with its cases: `schema.parametrize` makes them at collection, in every process."""
    made = get_all_tests(schema=schema, test_func=check, settings=None, given_kwargs=None)
    return {operation.label: each for operation, each in map(valid, made)}


@pytest.mark.parametrize("operation", [found.label for found in map(valid, schema.get_all_operations())])
def test_whatever_is_asked_the_answer_is_a_documented_one(
    operation: str, checks: dict[str, Callable[..., None]], caller: Caller
) -> None:
    caller.there.clear()
    checks[operation](caller=caller)


@_EXAMPLES
def check(case: schemathesis.Case, caller: Caller) -> None:
    if caller.is_repetition(case):
        return
    is_good = case.meta is not None and case.meta.generation.mode.is_positive
    # Each of these waits for the engine, a fifth of a second; wrong ones do not.
    if case.path in _ASKING and is_good and not caller.is_turn(case.path, every=6):
        return
    if caller.is_turn("there", every=2):
        name_what_there_is(case, caller)
    try:
        case.call_and_validate(base_url=caller.url, session=caller, checks=_CHECKS, timeout=30)
    finally:
        if case.path.startswith("/v1/queue/"):  # the jobs of later cases wait in the same queue
            caller.post(f"{caller.url}/v1/queue/resume").raise_for_status()


def name_what_there_is(case: schemathesis.Case, caller: Caller) -> None:
    """Ids in the path, and the file that the body names, exist."""
    for name in case.path_parameters.keys() & _NAMED:
        case.path_parameters[name] = caller.there_is(name)
    if isinstance(case.body, dict) and isinstance(case.body.get("input_file_id"), str):
        case.body["input_file_id"] = caller.there_is("file_id")
