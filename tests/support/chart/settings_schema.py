"""Writes the settings of the code into the schema of the chart's values: `make chart-schema`."""

import json
import sys
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from jobs.settings import Group, Settings

CHART: Final = Path(__file__).resolve().parents[3] / "deploy" / "helm" / "longbatch"
# Settings that have values of their own in the chart, so that each has one place; {group: names}.
BY_CHART: Final = {
    "api": {"host", "port", "tls_certificate", "tls_key"},  # its probes and its Service speak plain HTTP
    "metrics": {"host", "port"},
    "engine": {"name", "url"},
    "jobs": {"shutdown_grace_seconds"},
    "documents": {"extractor_key_file"},
}
SECRETS_BY_CHART: Final = {"database": {"url"}, "broker": {"url"}, "engine": {"api_key"}}
_LEFT_OUT: Final = {"title", "default", "format", "writeOnly"}


def secret_fields() -> dict[str, set[str]]:
    """Secrets, by group: they come from Secrets alone."""
    return {
        group: {name for name, field in fields.items() if SecretStr.__name__ in str(field.annotation)}
        for group, fields in _fields().items()
    }


def settings_schema() -> dict[str, Any]:
    """Describe all settings that values may hold, by groups, in terms of draft 7."""
    whole = Settings.model_json_schema()
    groups = {}
    for group, fields in _fields().items():
        described = whole["$defs"][_group_class(group).__name__]["properties"]
        closed = secret_fields()[group] | BY_CHART.get(group, set())
        open_fields = {name: _plain(described[name], whole["$defs"]) for name in fields if name not in closed}
        if open_fields:
            groups[group] = {
                "description": (_group_class(group).__doc__ or "").strip(),
                "type": "object",
                "additionalProperties": False,
                "properties": open_fields,
            }
    return {
        "description": "Settings by group and name, as in jobs/settings: LONGBATCH_<GROUP>__<NAME>.",
        "type": "object",
        "additionalProperties": False,
        "properties": groups,
    }


def secret_settings_schema() -> dict[str, Any]:
    """Describe where the settings that are secrets come from, but for those that have values of their own."""
    groups = {}
    for group, names in secret_fields().items():
        open_names = sorted(names - SECRETS_BY_CHART.get(group, set()))
        if open_names:
            groups[group] = {
                "description": f"Secrets of the group {group}.",
                "type": "object",
                "additionalProperties": False,
                "properties": {name: _secret(group, name) for name in open_names},
            }
    return {
        "description": "Settings that are secrets, by group and name.",
        "type": "object",
        "additionalProperties": False,
        "properties": groups,
    }


def _secret(group: str, name: str) -> dict[str, Any]:
    told = _fields()[group][name].description or ""
    return {"description": told, "allOf": [{"$ref": "#/definitions/optionalSecretKey"}]}


def whole_schema(written: str) -> str:
    """Return the schema of values with the settings of the code."""
    schema = json.loads(written)
    schema["definitions"] |= {"settings": settings_schema(), "secretSettings": secret_settings_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _group_class(group: str) -> type[Group]:
    found = Settings.model_fields[group].annotation
    assert isinstance(found, type)
    assert issubclass(found, Group)
    return found


def _fields() -> dict[str, dict[str, Any]]:
    return {group: _group_class(group).model_fields for group in Settings.model_fields}


def _plain(field: dict[str, Any], defined: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a variable cannot say (null), and what only pydantic reads."""
    typed = [each for each in field.get("anyOf", [field]) if each.get("type") != "null"]
    kept = [_inlined(each, defined) for each in typed]
    described = {"description": field["description"]} if "description" in field else {}
    return (kept[0] if len(kept) == 1 else {"anyOf": kept}) | described


def _inlined(found: Any, defined: dict[str, Any]) -> Any:  # noqa: ANN401  # any part of a schema
    """Put what a reference names in its place: draft 7 has no such definitions here."""
    if isinstance(found, list):
        return [_inlined(each, defined) for each in found]
    if not isinstance(found, dict):
        return found
    if "$ref" in found:
        return _inlined(defined[found["$ref"].rpartition("/")[2]], defined)
    return {name: _inlined(value, defined) for name, value in found.items() if name not in _LEFT_OUT}


if __name__ == "__main__":
    schema_file = CHART / "values.schema.json"
    schema_file.write_text(whole_schema(schema_file.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{schema_file}\n")
