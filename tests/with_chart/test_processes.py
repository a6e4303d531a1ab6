"""The pods run the processes of the code, with settings that it takes, on the ports that they listen on."""

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from chart.rendering import EXAMPLES, ROOT, Manifest, Render, Rendered
from jobs import doorbell, settings
from jobs.settings import ENV_PREFIX, Settings

SECRETS = {
    "LONGBATCH_DATABASE__URL": "postgresql://user:password@host:5432/name",
    "LONGBATCH_BROKER__URL": "redis://:password@host:6379/0",
    "LONGBATCH_WEBHOOKS__SECRET": "whsec_",
    "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY": "key",
    "LONGBATCH_TRACES__HEADERS": "name=value",
    "LONGBATCH_ENGINE__API_KEY": "key",
}
# How long a worker takes to end after its grace: worker/process.py and worker/celery_app.py.
LEFT_SECONDS = 15


def variables(container: Manifest) -> dict[str, str]:
    """As the process gets them, with some value for each secret."""
    return {each["name"]: each.get("value", SECRETS.get(each["name"], "x")) for each in container["env"]}


def loaded(container: Manifest, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Its settings, read by the code."""
    for name in os.environ:
        if name.startswith(ENV_PREFIX):
            monkeypatch.delenv(name)
    for name, value in variables(container).items():
        monkeypatch.setenv(name, value)
    found = settings.load()
    for name in variables(container):
        monkeypatch.delenv(name)
    return found


def component(found: Manifest) -> str:
    return str(found["metadata"]["labels"]["app.kubernetes.io/component"])


def only_container(deployment: Manifest) -> Manifest:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_every_process_of_the_compose_file_is_here(render: Render) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services = [compose["services"][name] for name in ("migrate", "api", "worker", "service-worker")]
    minimal = render(yaml.safe_load((EXAMPLES[0].parent / "minimal.yaml").read_text()))
    commands = sorted(each["command"] for each in minimal.containers())
    assert commands == sorted(each["command"] for each in services)


def test_commands_are_those_of_the_code(example: Rendered) -> None:
    for container in example.containers():
        python, flag, module, *rest = container["command"]
        assert (python, flag) == ("python", "-m")
        assert importlib.util.find_spec(module) is not None
        expected: dict[str, list[list[str]]] = {"api": [[]], "alembic": [["upgrade", "head"]]}
        expected["worker"] = [[doorbell.INFERENCE], [doorbell.SERVICE]]
        assert rest in expected[module]


def test_the_code_takes_every_variable(example: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
    for deployment in example.of("Deployment"):
        names = [each["name"] for each in only_container(deployment)["env"]]
        assert len(names) == len(set(names))
        loaded(only_container(deployment), monkeypatch)
    for job in example.of("Job"):
        for name in variables(only_container(job)):
            assert name.startswith("LONGBATCH_DATABASE__")


def test_ports_and_probes_are_those_of_the_processes(
    example: Rendered, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
    for deployment in example.of("Deployment"):
        container = only_container(deployment)
        read = loaded(container, monkeypatch)
        is_api = component(deployment) == "api"
        (port,) = container["ports"]
        listening = (read.api.host, read.api.port) if is_api else (read.metrics.host, read.metrics.port)
        assert listening == ("0.0.0.0", port["containerPort"])  # noqa: S104  # pods are reached from elsewhere
        probes = [each["httpGet"] for name, each in container.items() if name.endswith("Probe")]
        assert {each["port"] for each in probes} == {port["name"]}
        assert {each["path"] for each in probes} == ({"/health/live"} if is_api else {"/metrics"})
        assert all(each["path"] in described for each in probes)
    for service in example.of("Service"):
        (port,) = service["spec"]["ports"]
        assert port["targetPort"] == "http"


def test_objects_name_each_other(example: Rendered) -> None:
    deployments = {each["metadata"]["name"]: each for each in example.of("Deployment")}
    assert len(deployments) == len(example.of("Deployment"))
    for deployment in deployments.values():
        wanted = deployment["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    for each in example.of("ScaledObject", "HorizontalPodAutoscaler"):
        target = deployments[each["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in target["spec"]  # otherwise each upgrade would set them back
    pods = [each["metadata"]["labels"] for each in example.pods()]
    for each in example.of("PodDisruptionBudget", "NetworkPolicy"):
        selector = each["spec"].get("podSelector", each["spec"].get("selector"))["matchLabels"]
        assert any(selector.items() <= labels.items() for labels in pods), each["metadata"]["name"]
    assert all(len(each["metadata"]["name"]) <= 63 for each in example.objects)
    for pod in example.pods():
        volumes = {each["name"] for each in pod["spec"]["volumes"]}
        mounts = [
            mount["name"]
            for container in pod["spec"]["containers"] + pod["spec"].get("initContainers", [])
            for mount in container.get("volumeMounts", [])
        ]
        assert set(mounts) <= volumes


def test_pods_are_confined(example: Rendered) -> None:
    for pod in example.pods():
        # Kubernetes would set LONGBATCH_API_PORT and the like, which no process starts with.
        assert pod["spec"]["enableServiceLinks"] is False
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]  # noqa: S108  # of the pod
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]["memory"]


def test_service_links_would_keep_a_process_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LONGBATCH_API_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(ValueError, match="LONGBATCH_API_SERVICE_HOST"):
        settings.load()


def test_the_user_is_the_image_s() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "longbatch" / "values.yaml").read_text())
    (uid,) = re.findall(r"useradd --uid (\d+)", dockerfile)
    assert values["podSecurityContext"]["runAsUser"] == int(uid)


def test_secrets_are_references(example: Rendered) -> None:
    for container in example.containers():
        for each in container["env"]:
            is_secret = each["name"] in SECRETS or each["name"].startswith("AWS_")
            if is_secret and each["name"] not in ("AWS_REGION", "AWS_ENDPOINT_URL"):
                assert "value" not in each
                assert set(each["valueFrom"]["secretKeyRef"]) == {"name", "key"}
    assert example.of("Secret") == []


def test_every_process_that_reads_content_has_the_key_to_it(
    render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = yaml.safe_load((EXAMPLES[0].parent / "everything.yaml").read_text())
    found = [only_container(each) for each in render(values).of("Deployment")]
    assert len(found) > 2
    for each in found:
        read = loaded(each, monkeypatch)
        assert read.database.encrypt_content
        assert read.webhooks.encryption_key is not None


def test_a_worker_ends_before_its_pod_is_killed(example: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
    for deployment in example.of("Deployment"):
        if component(deployment) == "inference-worker":
            pod, container = deployment["spec"]["template"]["spec"], only_container(deployment)
            grace = loaded(container, monkeypatch).jobs.shutdown_grace_seconds
            assert pod["terminationGracePeriodSeconds"] >= grace + LEFT_SECONDS
            # `engine drain` would outlive the pod: SIGTERM alone drains.
            assert "lifecycle" not in container


def test_an_engine_in_the_pod_outlives_its_worker(render: Render) -> None:
    found = render(yaml.safe_load((EXAMPLES[0].parent / "two-engines.yaml").read_text()))
    engines = [each for each in found.of("Deployment") if component(each) == "inference-worker"]
    assert len(engines) == 2
    for each in engines:
        (server,) = each["spec"]["template"]["spec"]["initContainers"]
        assert server["restartPolicy"] == "Always"  # Kubernetes ends such a container after the others
        assert server["startupProbe"]
        assert each["spec"]["strategy"] == {"type": "Recreate"}


def test_each_layer_of_settings_goes_over_the_one_below(
    render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = yaml.safe_load((EXAMPLES[0].parent / "minimal.yaml").read_text())
    values["settings"] = {
        "jobs": {"share_equal": True, "retention_days": 0.5, "max_attempts": 5},
        "webhooks": {"allowed_hosts": ["a<b", "c"]},
        "limits": {"max_enqueued_tokens": 123_456_789_012},
        "documents": {"ocr_tesseract": ""},
        "tokenizer": {"path": "/a $(HOME) b"},
    }
    values["engineDefaults"] = {"settings": {"jobs": {"max_attempts": 6, "max_rescues": 3}}}
    values["engineDefaults"]["settings"]["triton"] = {"metrics_url": "http://triton:9002/metrics"}
    values["engines"][0]["settings"] = {
        "jobs": {"share_equal": False, "max_rescues": 4},
        "triton": {"http_url": "http://triton:9000"},
    }
    values["networkPolicy"] = {"enabled": True}
    values["api"] = {"settings": {"jobs": {"max_attempts": 7}}}
    found = render(values)
    worker = loaded(only_container(found.named("Deployment", "lb-engine-triton")), monkeypatch)
    api = loaded(only_container(found.named("Deployment", "lb-api")), monkeypatch)
    service = loaded(only_container(found.named("Deployment", "lb-service-worker")), monkeypatch)
    assert [each.jobs.max_attempts for each in (worker, api, service)] == [6, 7, 5]
    assert (worker.jobs.share_equal, worker.jobs.max_rescues) == (False, 4)
    assert api.jobs.share_equal
    assert api.jobs.retention_days == 0.5
    assert service.webhooks.allowed_hosts == ("a<b", "c")
    assert service.limits.max_enqueued_tokens == 123_456_789_012
    assert service.tokenizer.path == "/a $$(HOME) b"  # Kubernetes makes $( of $$(
    rules = found.named("NetworkPolicy", "lb-engine-triton")["spec"]["egress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == {6379, 8001, 9000, 9002}
    models = {each.engine.model for each in (worker, api, service)}
    assert models == {"llama-3.1-8b-instruct"}


def test_all_processes_have_the_file_that_the_database_s_url_names(render: Render) -> None:
    found = render(yaml.safe_load((EXAMPLES[0].parent / "everything.yaml").read_text()))
    mount = {"name": "authority", "mountPath": "/etc/postgres", "readOnly": True}
    assert len(found.of("Job")) == 1
    assert all(mount in each["volumeMounts"] for each in found.containers())


def test_engines_can_be_replaced_one_after_the_other(render: Render) -> None:
    values = yaml.safe_load((EXAMPLES[0].parent / "workers-only.yaml").read_text())
    values["image"]["tag"] = "old"
    values["engines"][0]["image"] = {"tag": "new"}
    found = render(values)
    images = [only_container(found.named("Deployment", f"lb-engine-gpu-{n}"))["image"] for n in (1, 2)]
    assert [each.rpartition(":")[2] for each in images] == ["new", "old"]


def test_workers_reach_the_engine_s_ports_and_nothing_else(render: Render) -> None:
    found = render(yaml.safe_load((EXAMPLES[0].parent / "everything.yaml").read_text()))
    deny = found.named("NetworkPolicy", "batch-default-deny")["spec"]
    assert (deny["policyTypes"], set(deny)) == (["Ingress", "Egress"], {"policyTypes", "podSelector"})

    def ports(name: str, way: str = "egress") -> set[int]:
        rules: list[dict[str, Any]] = found.named("NetworkPolicy", name)["spec"].get(way, [])
        return {port["port"] for rule in rules for port in rule["ports"]}

    triton = variables(only_container(found.named("Deployment", "batch-engine-triton")))
    names = ("LONGBATCH_ENGINE__URL", "LONGBATCH_TRITON__HTTP_URL", "LONGBATCH_TRITON__METRICS_URL")
    assert ports("batch-engine-triton") == {urlsplit(triton[name]).port for name in names} | {6379, 443}
    assert ports("batch-engine-hosted") == {443, 3128, 6379}
    assert ports("batch-all") == {53, 5432}
    assert ports("batch-api", "ingress") == {8080}
    assert ports("batch-service-worker") == {6379, 443, 4318, 5001, 8443}
    assert ports("batch-api") == {6379, 443, 4318, 8444}
    assert ports("batch-service-worker", "ingress") == {9464}


def test_the_notes_name_what_was_installed(example: Rendered) -> None:
    names = {each["metadata"]["name"] for each in example.objects}
    assert set(re.findall(r"(?:deploy|svc)/([a-z0-9-]+)", example.notes)) <= names


def test_examples_are_named_in_the_documentation() -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    assert [file.name for file in EXAMPLES if f"examples/{file.name}" not in text] == []
    assert Path(ROOT / "deploy" / "helm" / "longbatch" / "Chart.yaml").exists()
