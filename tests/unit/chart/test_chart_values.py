"""The chart's values, schema and templates name what the code has; `make check-chart` renders them."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from chart.settings_schema import (
    BY_CHART,
    CHART,
    SECRETS_BY_CHART,
    secret_settings_schema,
    settings_schema,
    whole_schema,
)
from commands import whole_command
from jobs.engines.capacity import Capacity
from jobs.settings import ENV_PREFIX, Settings
from jobs.version import version

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "deploy" / "helm" / "examples").glob("*.yaml"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
TEMPLATES = {file.name: file.read_text() for file in sorted((CHART / "templates").iterdir())}


def merged(values: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Values over others, as Helm lays them: objects field by field."""
    result = deepcopy(values)
    for name, value in over.items():
        below = result.get(name)
        if isinstance(value, dict) and isinstance(below, dict):
            result[name] = merged(below, value)
        else:
            result[name] = value
    return result


def faults(over: dict[str, Any]) -> list[str]:
    """What the schema refuses: place and words."""
    found = jsonschema_rs.Draft7Validator(SCHEMA).iter_errors(merged(DEFAULTS, over))
    return [f"{'.'.join(map(str, each.instance_path))}: {each.message}" for each in found]


def minimal(**over: object) -> dict[str, Any]:
    return merged(yaml.safe_load((EXAMPLES[0].parent / "minimal.yaml").read_text()), over)


def engine(**fields: object) -> dict[str, Any]:
    return minimal(engines=[{"name": "a", "model": "m", "url": "http://engine:8000", **fields}])


def test_the_schema_has_the_settings_of_the_code() -> None:
    """`make chart-schema` writes them anew."""
    written = (CHART / "values.schema.json").read_text(encoding="utf-8")
    assert written == whole_schema(written)


def test_every_setting_can_be_given_in_exactly_one_way() -> None:
    of_values = {group: set(of["properties"]) for group, of in settings_schema()["properties"].items()}
    secrets = secret_settings_schema()["properties"]
    of_secrets = {group: set(of["properties"]) for group, of in secrets.items()}
    for group, field in Settings.model_fields.items():
        assert field.annotation is not None
        groups = (of_values, of_secrets, BY_CHART, SECRETS_BY_CHART)
        ways = [each.get(group, set()) for each in groups]
        assert set.union(*ways) == set(field.annotation.model_fields)
        assert sum(map(len, ways)) == len(field.annotation.model_fields)


def test_there_are_examples_of_every_shape() -> None:
    names = {file.stem for file in EXAMPLES}
    assert names >= {
        "minimal",
        "two-engines",
        "twenty-engines",
        "scale-to-zero",
        "everything",
        "workers-only",
    }
    numbers = {file.stem: len(yaml.safe_load(file.read_text()).get("engines", [])) for file in EXAMPLES}
    assert (numbers["two-engines"], numbers["twenty-engines"], numbers["without-workers"]) == (2, 20, 0)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_fits_the_schema(file: Path) -> None:
    assert faults(yaml.safe_load(file.read_text())) == []


@pytest.mark.parametrize(
    ("values", "place", "word"),
    [
        ({}, "image.repository", "shorter than 1"),
        (minimal(secrets={"database": {"name": ""}}), "secrets.database.name", "match"),
        (minimal(secrets={"broker": {"key": None, "url": "x"}}), "secrets.broker", "'url'"),
        (minimal(replicas=2), "", "'replicas'"),
        (minimal(api={"replica": 2}), "api", "'replica'"),
        (
            minimal(secretSettings={"webhooks": {"secret": "whsec_"}}),
            "secretSettings.webhooks.secret",
            "object",
        ),
        (minimal(api={"replicas": "2"}), "api.replicas", "integer"),
        (minimal(api={"ingress": {"enabled": True}}), "api.ingress.hosts", "less than 1"),
        (minimal(settings={"job": {}}), "settings", "'job'"),
        (minimal(settings={"jobs": {"max_attempt": 3}}), "settings.jobs", "'max_attempt'"),
        (minimal(settings={"jobs": {"max_attempts": 21}}), "settings.jobs.max_attempts", "maximum of 20"),
        (minimal(settings={"jobs": {"share_equal": "yes"}}), "settings.jobs.share_equal", "boolean"),
        (minimal(settings={"triton": {"adapter": "x"}}), "settings.triton.adapter", "is not one of"),
        (minimal(settings={"database": {"url": "postgresql://u:p@h/d"}}), "settings.database", "'url'"),
        (minimal(settings={"webhooks": {"secret": "whsec_"}}), "settings.webhooks", "'secret'"),
        (minimal(settings={"api": {"port": 80}}), "settings.api", "'port'"),
        (minimal(settings={"jobs": {"shutdown_grace_seconds": 9}}), "settings.jobs", "'shutdown_grace"),
        (minimal(extraEnv=[{"name": "LONGBATCH_X", "value": "y"}]), "extraEnv.0.name", "^LONGBATCH_"),
        (minimal(volumeMounts=[{"name": "v", "mountPath": "/app"}]), "volumeMounts.0.mountPath", "not"),
        (minimal(serviceWorker={"autoscaling": {"minReplicas": 0}}), "serviceWorker.autoscaling", "minimum"),
        (minimal(monitoring={"serviceMonitor": {"enabled": True}}), "monitoring.serviceMonitor", "name"),
        (minimal(fullnameOverride="x" * 31), "fullnameOverride", "longer than 30"),
        (engine(name="Upper"), "engines.0.name", "match"),
        (engine(name="x" * 25), "engines.0.name", "longer than 24"),
        (engine(url="http://user:pw@engine:8000"), "engines.0.url", "match"),
        (engine(url="engine:8000"), "engines.0.url", "match"),
        (engine(apiKey={"name": "s"}), "engines.0.apiKey", "key"),
        (engine(server={"imagePullPolicy": "Always"}), "engines.0.server", "image"),
        (engine(drainSeconds=-1), "engines.0.drainSeconds", "minimum"),
        (engine(autoscaling={"minimum": 0}), "engines.0.autoscaling", "'minimum'"),
    ],
)
def test_the_schema_refuses_a_wrong_value_and_names_it(values: dict[str, Any], place: str, word: str) -> None:
    found = faults(values)
    assert any(each.startswith(place) and word in each for each in found), found


def described(schema: dict[str, Any], place: str) -> list[str]:
    """Properties without a description."""
    missing = []
    for name, each in schema.get("properties", {}).items():
        if "description" not in each:
            missing.append(f"{place}.{name}")
        missing += described(each, f"{place}.{name}")
    return missing


def test_every_value_of_the_chart_is_described() -> None:
    own = {name: each for name, each in SCHEMA["definitions"].items() if name != "settings"}
    conditions = {".serviceMonitor.apiKey", ".ingress.hosts"}
    places = described(SCHEMA, "") + [place for name in own for place in described(own[name], name)]
    assert set(places) - conditions == set()


def test_patterns_are_those_that_helm_reads() -> None:
    """Helm's validator knows neither looking ahead nor back."""
    patterns = re.findall(r'"pattern": "(.*)"', (CHART / "values.schema.json").read_text())
    assert len(patterns) > 15
    assert not [each for each in patterns if "(?" in each]


def test_the_variables_that_templates_spell_out_are_the_secrets_of_the_chart() -> None:
    spelt = set(re.findall(r"LONGBATCH_[A-Z]+__[A-Z_]+", "".join(TEMPLATES.values())))
    secrets = {f"{group}__{name}" for group, names in SECRETS_BY_CHART.items() for name in names}
    assert spelt == {f"{ENV_PREFIX}{each.upper()}" for each in secrets}


def test_the_alerts_of_the_chart_are_those_of_monitoring() -> None:
    assert (CHART / "files" / "rules.yml").read_text() == (ROOT / "monitoring" / "rules.yml").read_text()


def test_the_chart_is_of_this_version() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version()


def command_lines() -> list[list[str]]:
    """The commands of ours that notes and documentation of the chart give, as words."""
    texts = (TEMPLATES["NOTES.txt"], (ROOT / "docs" / "kubernetes.md").read_text())
    found = re.findall(r"python -m cli ([^\n`|]+)", "\n".join(texts).replace("\\\n", " "))
    return [each.split() for each in found]


def test_notes_and_documentation_name_commands_that_there_are() -> None:
    lines = command_lines()
    assert len(lines) >= 3
    for words in lines:
        command: Any = whole_command()
        rest = list(words)
        while rest and rest[0] in getattr(command, "commands", {}):
            command = command.commands[rest.pop(0)]
        assert not hasattr(command, "commands"), words
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= options, words


def test_capacity_is_told_by_settings_alone() -> None:
    """A reader of values finds each limit of an engine under its name in the database."""
    of_engine = settings_schema()["properties"]["engine"]["properties"]
    assert set(Capacity.__dataclass_fields__) <= set(of_engine)
