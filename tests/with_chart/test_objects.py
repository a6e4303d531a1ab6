"""What the chart renders are objects that Kubernetes, KEDA and prometheus-operator take."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.rendering import CHART, EXAMPLES, FETCHED, ROOT, KubernetesSchemas, Manifest, Render, Rendered

OF_OTHERS = ("keda.sh/v1alpha1", "monitoring.coreos.com/v1")
CHECKER = Path(__file__).parent / "objects" / "check.mjs"
# Their schemas let unknown fields pass, which the API server then drops: here are the fields that we use.
FIELDS = {
    "ScaledObject": {
        "scaleTargetRef",
        "minReplicaCount",
        "maxReplicaCount",
        "pollingInterval",
        "cooldownPeriod",
        "initialCooldownPeriod",
        "fallback",
        "advanced",
        "triggers",
    },
    "ServiceMonitor": {"selector", "endpoints"},
    "PodMonitor": {"selector", "podMetricsEndpoints"},
    "PrometheusRule": {"groups"},
}


def checked_elsewhere(objects: list[Manifest]) -> list[str | None]:
    node = Path(sys.executable).parent / "node"
    told = subprocess.run(
        [node, CHECKER], input=json.dumps(objects), capture_output=True, text=True, check=True, timeout=60
    )
    found: list[str | None] = json.loads(told.stdout)
    return found


def test_kubernetes_takes_every_object_of_its_own(example: Rendered, kubernetes: KubernetesSchemas) -> None:
    own = [each for each in example.objects if each["apiVersion"] not in OF_OTHERS]
    assert own
    for each in own:
        assert kubernetes.faults(each) == [], each["metadata"]["name"]


def test_names_that_look_like_numbers_stay_names(render: Render, kubernetes: KubernetesSchemas) -> None:
    values = yaml.safe_load((EXAMPLES[0].parent / "everything.yaml").read_text())
    for secret in values["secrets"].values():
        secret |= {"name": "1", "key": "2"}
    values["engines"][0] |= {"name": "1", "priorityClassName": "3", "runtimeClassName": "4"}
    values["engines"][1] |= {"name": "true"}
    values["imagePullSecrets"] = ["5"]
    values["serviceAccount"] = {"create": False, "name": "6"}
    values["migrations"] = {"serviceAccountName": "7"}
    values["api"]["ingress"] |= {"className": "8", "tlsSecretName": "9"}
    found = render(values)
    own = [each for each in found.objects if each["apiVersion"] not in OF_OTHERS]
    assert {each["metadata"]["name"] for each in own} >= {"batch-engine-1", "batch-engine-true"}
    for each in own:
        assert kubernetes.faults(each) == [], each["metadata"]["name"]


def test_an_unknown_field_or_a_wrong_type_is_a_fault(render: Render, kubernetes: KubernetesSchemas) -> None:
    deployment = render(yaml.safe_load((EXAMPLES[0].parent / "minimal.yaml").read_text())).of("Deployment")[0]
    deployment["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    deployment["spec"]["replicas"] = "2"
    found = "\n".join(kubernetes.faults(deployment))
    assert "imagePullPolice" in found
    assert "spec.replicas" in found


def test_keda_and_prometheus_operator_take_theirs(render: Render) -> None:
    every = [render(yaml.safe_load(file.read_text())) for file in EXAMPLES]
    theirs = [found for each in every for found in each.objects if found["apiVersion"] in OF_OTHERS]
    assert {each["kind"] for each in theirs} == set(FIELDS)
    assert checked_elsewhere(theirs) == [None] * len(theirs)
    for each in theirs:
        assert set(each["spec"]) <= FIELDS[each["kind"]]
    wrong = json.loads(json.dumps(theirs[0]))
    wrong["spec"]["triggers"][0]["type"] = 1
    (fault,) = checked_elsewhere([wrong])
    assert fault is not None
    assert "triggers/0/type" in fault


def test_helm_finds_nothing_to_complain_of() -> None:
    sys.path.append(str(FETCHED))
    from helm_python.chart import lint

    for file in EXAMPLES:
        told = lint(CHART, yaml.safe_load(file.read_text()), strict=True)
        worse = [each for each in told["messages"] if each["severity"] > 1]
        assert (told["errors"], worse) == ([], [])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"image": {"repository": "x"}}, ["secrets", "database", "broker"]),
        ({"secrets": {"database": {"nam": "x"}}}, ["/secrets/database", "nam"]),
        ({"settings": {"jobs": {"max_attempts": "three"}}}, ["/settings/jobs/max_attempts", "integer"]),
        ({"api": {"replica": 1}}, ["/api", "replica"]),
        ({"engines": [{"name": "a", "model": "m"}]}, ["/engines/0", "url"]),
    ],
)
def test_helm_refuses_wrong_values_and_names_them(
    render: Render, values: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(Exception, match="schema") as refused:
        render(values)
    assert all(word in str(refused.value) for word in words), refused.value


ENGINE = {"name": "a", "model": "m", "url": "http://127.0.0.1:8000"}
SCALED = {"enabled": True}
TWO_PODS = SCALED | {"maxReplicas": 2}
KEDA = {"autoscaling": {"prometheus": {"serverAddress": "http://prometheus:9090"}}}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"engines": [ENGINE, ENGINE]}, 'two are named "a"'),
        ({"engines": [{**ENGINE, "server": {"image": "x"}, "replicas": 2}]}, '"a" has a server in its pod'),
        (
            {
                **KEDA,
                "engines": [
                    {**ENGINE, "server": {"image": "x"}, "autoscaling": {"enabled": True, "maxReplicas": 2}}
                ],
            },
            '"a" has a server in its pod',
        ),
        (
            {**KEDA, "engines": [{**ENGINE, "autoscaling": SCALED | {"minReplicas": 2}}]},
            "minReplicas above",
        ),
        (
            {"engines": [{**ENGINE, "autoscaling": {"enabled": True}}]},
            "needs autoscaling.prometheus.serverAddress",
        ),
        (
            {"engines": [{**ENGINE, "server": {"image": "x"}, "url": "http://elsewhere:8000"}]},
            "its url is of 127.0.0.1, not http://elsewhere:8000",
        ),
        ({"serviceWorker": {"autoscaling": SCALED}}, "serviceWorker.autoscaling.enabled needs"),
        (
            {"api": {"autoscaling": {"enabled": True, "minReplicas": 11}}},
            "api.autoscaling.minReplicas is above",
        ),
    ],
)
def test_what_the_schema_cannot_say_templates_refuse(
    render: Render, values: dict[str, Any], words: str
) -> None:
    minimal = yaml.safe_load((EXAMPLES[0].parent / "minimal.yaml").read_text())
    with pytest.raises(Exception, match=words):
        render({**minimal, **values})


def test_the_chart_is_packed_with_its_alerts_alone(render: Render, tmp_path: Path) -> None:
    assert render is not None
    from helm_python import Chart

    with Chart.load(CHART) as chart:
        assert {each["name"] for each in chart.files} == {"files/rules.yml"}
        packed = Path(chart.save(tmp_path))
    assert packed.stat().st_size < 100_000
    assert ROOT in CHART.parents
