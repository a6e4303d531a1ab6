"""KEDA's queries name metrics of the code, and say start and stop at the right time."""

import re
from datetime import UTC, datetime

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse

from api.system.metrics import MetricsSnapshot, queue_exposition
from chart.rendering import EXAMPLES, Manifest, Render, Rendered
from jobs.models import Engine
from jobs.queries import EngineUsage
from jobs.states import JobState


@pytest.fixture(scope="module")
def scaling(render: Render) -> Rendered:
    return render(yaml.safe_load((EXAMPLES[0].parent / "scale-to-zero.yaml").read_text()))


def registered() -> dict[str, set[str]]:
    """The metrics of the API that come from Postgres, with their labels."""
    now = datetime.now(UTC)
    usage = EngineUsage(Engine(name="a", model="m", max_batch_size=4, max_blocks=64, seen_at=now), 0, 0)
    told = queue_exposition(MetricsSnapshot({"queued": 0}, [], [usage], 0, 0, now)).decode()
    return {family.name: {name for each in family.samples for name in each.labels} for family in parse(told)}


def triggers(found: Manifest) -> dict[str, dict[str, str]]:
    return {each["name"]: each["metadata"] for each in found["spec"]["triggers"]}


def test_every_query_is_of_a_metric_that_each_api_process_tells(example: Rendered) -> None:
    known = registered()
    for found in example.of("ScaledObject"):
        for trigger in triggers(found).values():
            function, name, matchers = re.findall(r"^(\w+)\((\w+)\{(.*)\}\)", trigger["query"])[0]
            assert function == "max"  # they all tell the same
            labels = dict(re.findall(r'(\w+)="([^"]*)"', matchers))
            assert set(labels) - {"namespace", "service"} <= known[name]
            assert labels.get("state", "queued") in set(JobState)
            assert trigger["serverAddress"].startswith("http://")


def test_queries_are_of_the_engine_and_its_model(scaling: Rendered) -> None:
    for name in ("first", "second"):
        found = triggers(scaling.named("ScaledObject", f"lb-engine-{name}"))
        selector = 'namespace="batch",service="lb-api"'
        assert found["backlog"]["query"] == (
            f'max(longbatch_queued_jobs{{model="llama-3.1-8b-instruct",{selector}}})'
        )
        assert found["running"]["query"] == (
            f'max(longbatch_engine_slots_booked{{engine="{name}",{selector}}}) or vector(0)'
        )


def test_the_default_matchers_are_those_of_the_service_monitor(scaling: Rendered) -> None:
    (service,) = scaling.of("Service")
    assert service["metadata"]["name"] == "lb-api"
    (monitor,) = scaling.of("ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()


def test_engines_stop_without_work_and_never_for_want_of_an_answer(scaling: Rendered) -> None:
    for name, start in (("first", "0"), ("second", "500")):
        found = scaling.named("ScaledObject", f"lb-engine-{name}")
        spec, of = found["spec"], triggers(found)
        assert (spec["minReplicaCount"], spec["maxReplicaCount"], spec["cooldownPeriod"]) == (0, 1, 900)
        assert spec["fallback"]["replicas"] == 1
        assert {each["ignoreNullValues"] for each in of.values()} == {"false"}
        assert of["backlog"]["activationThreshold"] == start
        # What runs keeps the engine, and never asks for another pod.
        assert of["running"]["activationThreshold"] == "0"
        assert int(of["running"]["threshold"]) > 100_000


def test_a_service_worker_is_always_there(scaling: Rendered) -> None:
    found = scaling.named("ScaledObject", "lb-service-worker")
    assert found["spec"]["minReplicaCount"] == 1
    assert set(triggers(found)) == {"preparing", "documents", "webhooks"}


def test_no_alert_tells_of_an_engine_that_was_stopped_on_purpose(render: Render) -> None:
    values = yaml.safe_load((EXAMPLES[0].parent / "everything.yaml").read_text())

    def alerts() -> set[str]:
        (rules,) = render(values).of("PrometheusRule")
        return {each["alert"] for group in rules["spec"]["groups"] for each in group["rules"]}

    few = alerts()
    values["engines"][1]["autoscaling"]["minReplicas"] = 1
    many = alerts()
    assert many - few == {"LongbatchEngineUnseen"}
    values["monitoring"]["prometheusRule"]["without"] = ["LongbatchLoopLate"]
    assert many - alerts() == {"LongbatchLoopLate"}
