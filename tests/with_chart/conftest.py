"""Renders the chart by Helm's own code; `make check-chart` fetches it."""

import sys
from typing import Any

import pytest
import yaml

from chart.rendering import CHART, EXAMPLES, FETCHED, KUBERNETES, KubernetesSchemas, Render, Rendered


@pytest.fixture(scope="session")
def render() -> Render:
    sys.path.append(str(FETCHED))
    from helm_python import Chart

    chart = Chart.load(CHART)

    def rendered(values: dict[str, Any]) -> Rendered:
        files = chart.render(values, name="lb", namespace="batch")
        notes = [text for name, text in files.items() if name.endswith("NOTES.txt")]
        texts = [text for name, text in files.items() if name.endswith(".yaml")]
        objects = [each for text in texts for each in yaml.safe_load_all(text) if each]
        return Rendered(objects, "".join(notes))

    return rendered


@pytest.fixture(scope="session", params=EXAMPLES, ids=lambda file: file.stem)
def example(request: pytest.FixtureRequest, render: Render) -> Rendered:
    return render(yaml.safe_load(request.param.read_text()))


@pytest.fixture(scope="session", params=KUBERNETES)
def kubernetes(request: pytest.FixtureRequest) -> KubernetesSchemas:
    return KubernetesSchemas(request.param)
