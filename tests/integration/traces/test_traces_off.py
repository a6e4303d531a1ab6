"""Traces that are off cost nothing: no process imports what they need, and no setting is guessed."""

import os
import subprocess
import sys

import pytest
from pydantic import ValidationError

from jobs.settings import TraceSettings
from jobs.traces import configured

_LOADED = """
import sys
import api.server, worker.inference.worker, worker.service
ours = ("opentelemetry.sdk.trace", "opentelemetry.exporter", "jobs.traces.export")
print([name for name in sys.modules if name.startswith(ours)])  # redis itself imports the SDK's metrics
"""


# What the framework would do where anything in the process, or its environment, names a provider.
_PROVIDED = """
import asyncio
from types import SimpleNamespace
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from api.app import create_app
from jobs.settings import Settings

kept, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
scope = {"type": "http", "method": "GET", "path": "/health/live", "headers": [], "query_string": b""}
statuses = []

async def receive():
    return {"type": "http.request", "body": b""}

async def send(message):
    statuses.append(message.get("status"))

app = create_app(settings := Settings())
app.state.services = SimpleNamespace(settings=settings)  # which this route does not use
asyncio.run(app(scope, receive, send))
print(statuses[0], len(kept.get_finished_spans()))
"""


def test_the_framework_sends_no_spans_of_its_own() -> None:
    environment = os.environ | {
        "LONGBATCH_DATABASE__URL": "postgresql://a@b/c",
        "LONGBATCH_BROKER__URL": "redis://a",
    }
    command = [sys.executable, "-c", _PROVIDED]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, env=environment)
    assert said.stdout.split() == ["200", "0"]


def test_no_process_imports_the_tracer_unless_there_is_a_collector() -> None:
    said = subprocess.run(
        [sys.executable, "-c", _LOADED], check=True, capture_output=True, text=True, timeout=120
    )
    assert said.stdout.strip() == "[]"


def test_without_an_endpoint_traces_are_off() -> None:
    assert not configured.is_on(TraceSettings())
    assert configured.collector_of(TraceSettings()) is None
    assert configured.request_spans_of(TraceSettings()) is None


def test_opentelemetry_s_own_switch_turns_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TraceSettings(endpoint="http://collector:4318")
    assert configured.is_on(settings)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not configured.is_on(settings)


def test_an_endpoint_without_the_packages_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jobs.traces.export", None)
    with pytest.raises(ValueError, match=r"LONGBATCH_TRACES__ENDPOINT needs the extra `traces`"):
        configured.is_on(TraceSettings(endpoint="http://collector:4318"))


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://traces.example/otlp/v1/traces", "https://traces.example/otlp/v1/traces"),
        (None, None),
    ],
)
def test_a_collector_without_a_path_gets_the_usual_one(given: str | None, url: str | None) -> None:
    assert TraceSettings(endpoint=given).url == url


@pytest.mark.parametrize(
    "given",
    [
        {"endpoint": "collector:4318"},
        {"endpoint": "grpc://collector:4317"},
        {"endpoint": "http://user:canary@collector:4318"},
        {"endpoint": "http://"},
        {"headers": "canary"},
        {"headers": "a=b\nc: canary"},
        {"headers": "naïve=canary"},
        {"ratio": 1.5},
        {"max_jobs": 0},
        {"timeout_seconds": 0},
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_by_name(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as caught:
        TraceSettings.model_validate(given)
    assert [each["loc"] for each in caught.value.errors()] == [tuple(given)]


def test_headers_are_pairs_and_no_one_sees_them() -> None:
    settings = TraceSettings.model_validate({"headers": "X-Api-Key=canary=, tenant=a b"})
    assert settings.header_fields == {"x-api-key": "canary=", "tenant": "a b"}
    assert "canary" not in repr(settings)
