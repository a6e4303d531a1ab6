"""What Helm renders of the chart, and the schemas of Kubernetes' objects; `make check-chart` fetches both."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "longbatch"
EXAMPLES = sorted((ROOT / "deploy" / "helm" / "examples").glob("*.yaml"))
FETCHED = ROOT / ".chart" / "python"
# The oldest release that Chart.yaml allows, and the newest that the schemas have.
KUBERNETES = ("v1.30.0", "v1.37.0")

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Rendered:
    """The objects of one installation, and the notes."""

    objects: list[Manifest]
    notes: str

    def of(self, *kinds: str) -> list[Manifest]:
        return [each for each in self.objects if each["kind"] in kinds]

    def named(self, kind: str, name: str) -> Manifest:
        (found,) = [each for each in self.of(kind) if each["metadata"]["name"] == name]
        return found

    def pods(self) -> list[Manifest]:
        """The pods' templates of all workloads."""
        return [each["spec"]["template"] for each in self.of("Deployment", "Job")]

    def containers(self) -> list[Manifest]:
        """Our own containers."""
        return [container for pod in self.pods() for container in pod["spec"]["containers"]]


Render = Callable[[dict[str, Any]], Rendered]


class KubernetesSchemas:
    """Kubernetes' own objects by one of its releases; unknown fields are faults."""

    def __init__(self, release: str) -> None:
        folder = FETCHED / "kubernetes_validate" / "kubernetes-json-schema" / f"{release}-local-strict"
        self._folder = folder
        definitions = json.loads((folder / "_definitions.json").read_text())
        self._registry = jsonschema_rs.Registry([(definitions["$id"], definitions)])
        self._validators: dict[str, Any] = {}

    def faults(self, found: Manifest) -> list[str]:
        group, _, version = found["apiVersion"].rpartition("/")
        middle = f"-{group.split('.')[0]}" if group else ""
        name = f"{found['kind'].lower()}{middle}-{version}"
        if name not in self._validators:
            schema = json.loads((self._folder / f"{name}.json").read_text())
            self._validators[name] = jsonschema_rs.validator_for(schema, registry=self._registry)
        errors = self._validators[name].iter_errors(found)
        return [f"{'.'.join(map(str, each.instance_path))}: {each.message}" for each in errors]
