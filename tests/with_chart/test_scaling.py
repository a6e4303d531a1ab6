"""KEDA's queries name metrics of the code, and say start and stop at the right time."""

import json
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse

from api.system.metrics import MetricsSnapshot, queue_exposition
from chart.rendering import EXAMPLES, ROOT, Manifest, Render, Rendered
from jobs.models import Engine
from jobs.queries import EngineUsage
from jobs.states import JobState

PROMTOOL = ROOT / ".prometheus" / "usr" / "bin" / "promtool"


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


@pytest.mark.skipif(not PROMTOOL.exists(), reason="`make check-chart` fetches promtool")
def test_prometheus_answers_what_the_queries_mean(scaling: Rendered, tmp_path: Path) -> None:
    """Two API processes tell the same; another release in the namespace tells something else."""
    queries = {
        f"{name}:{trigger}": of["query"]
        for name in ("first", "second")
        for trigger, of in triggers(scaling.named("ScaledObject", f"lb-engine-{name}")).items()
    } | {
        name: of["query"] for name, of in triggers(scaling.named("ScaledObject", "lb-service-worker")).items()
    }
    told = {
        "longbatch_queued_jobs": {'model="llama-3.1-8b-instruct"': 7, 'model="another"': 50},
        "longbatch_engine_slots_booked": {'engine="first",model="llama-3.1-8b-instruct"': 3},
        "longbatch_jobs": {'state="preparing"': 11, 'state="queued"': 57},
        "longbatch_documents_extracting": {'job="api"': 5},
        "longbatch_webhook_events_pending": {'job="api"': 6},
    }
    ours, others = ("batch", "lb-api"), [("batch", "other-api"), ("other", "lb-api")]
    places = [(*ours, "1"), (*ours, "2"), *((*each, "1") for each in others)]
    series = [
        {
            "series": f'{metric}{{{labels},namespace="{namespace}",service="{service}",pod="{pod}"}}',
            "values": f"{value if (namespace, service) == ours else 999}x5",
        }
        for metric, samples in told.items()
        for labels, value in samples.items()
        for namespace, service, pod in places
    ]
    expected = {"first:backlog": 7, "second:backlog": 7, "first:running": 3, "second:running": 0}
    expected |= {"preparing": 11, "documents": 5, "webhooks": 6}

    def asked(query: str, *values: int) -> dict[str, object]:
        samples = [{"labels": "{}", "value": value} for value in values]
        return {"expr": query, "eval_time": "2m", "exp_samples": samples}

    of_apis = [asked(queries[name], expected[name]) for name in queries]
    # Nothing scraped: the backlog has no answer, which KEDA takes for an error; the other trigger says 0.
    of_none = [asked(queries["first:backlog"]), asked(queries["first:running"], 0)]
    tests = [
        {"interval": "1m", "input_series": series, "promql_expr_test": of_apis},
        {"interval": "1m", "input_series": [], "promql_expr_test": of_none},
    ]
    (tmp_path / "none.yml").write_text("groups: []")
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": ["none.yml"], "tests": tests}))
    ended = subprocess.run(
        [PROMTOOL, "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert set(queries) == set(expected)


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

    written = yaml.safe_load((ROOT / "monitoring" / "rules.yml").read_text())["groups"][0]["rules"]

    def alerts() -> set[str]:
        (rules,) = render(values).of("PrometheusRule")
        found = [each for group in rules["spec"]["groups"] for each in group["rules"]]
        assert all(each in written for each in found)
        return {each["alert"] for each in found}

    few = alerts()
    values["engines"][1]["autoscaling"]["minReplicas"] = 1
    many = alerts()
    assert many - few == {"LongbatchEngineUnseen"}
    assert len(many) == len(written)
    values["monitoring"]["prometheusRule"]["without"] = ["LongbatchLoopLate"]
    assert many - alerts() == {"LongbatchLoopLate"}
