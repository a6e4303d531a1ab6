"""Alerts, dashboard and documentation name metrics that the code registers, and document them all."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families as parse

from api.http.metrics import HttpMetrics
from api.system.metrics import MetricsSnapshot, queue_exposition
from jobs import telemetry
from jobs.models import Engine
from jobs.queries import Backlog, EngineUsage
from worker.metrics.process import ProcessMetrics
from worker.metrics.runs import RunMetrics

REPOSITORY = Path(__file__).resolve().parents[3]
FOLDER = REPOSITORY / "monitoring"
OF_HISTOGRAMS = ("_bucket", "_sum", "_count")
# Of every process that Prometheus reads.
OF_THE_LIBRARY = {"process_resident_memory_bytes", "process_cpu_seconds_total"}


def registered() -> set[str]:
    """Every metric of every process, as Prometheus names it; counters with their suffix."""
    process = ProcessMetrics()
    RunMetrics(process.registry, "engine-a")
    api = HttpMetrics()
    now = datetime.now(UTC)
    engine = Engine(name="a", model="m", max_batch_size=4, max_blocks=64, seen_at=now)
    usage = EngineUsage(engine, held_slots=0, held_blocks=0)
    snapshot = MetricsSnapshot({"queued": 0}, [], [usage], 0, 0, now)
    registries: tuple[CollectorRegistry, ...] = (process.registry, api.registry)
    families = [each for registry in registries for each in registry.collect()]
    families += parse(queue_exposition(snapshot).decode())
    return {f"{each.name}_total" if each.type == "counter" else each.name for each in families}


def named_in(text: str) -> set[str]:
    """The metrics that a text names; of a histogram its own name."""
    known = registered()
    found = set(re.findall(r"\b(?:longbatch|process)_[a-z_]+", text)) - {"longbatch_app", "longbatch_worker"}
    return {
        next((name.removesuffix(end) for end in OF_HISTOGRAMS if name.removesuffix(end) in known), name)
        for name in found
    }


def expressions() -> Iterator[str]:
    for each in json.loads((FOLDER / "dashboard.json").read_text())["panels"]:
        yield from (target["expr"] for target in each["targets"])
    yield from re.findall(
        r"expr: *(?:\|\n)?(.*?)\n +(?:for|labels):", (FOLDER / "rules.yml").read_text(), re.DOTALL
    )


def test_rules_and_dashboard_name_registered_metrics() -> None:
    found = list(expressions())
    assert len(found) > 30
    names = named_in("\n".join(found))
    assert names
    assert names <= registered() | OF_THE_LIBRARY


def test_rules_and_dashboard_name_events_of_the_log() -> None:
    matchers = re.findall(r'event=~?"([^"]+)"', "\n".join(expressions()))
    assert matchers
    for each in "|".join(matchers).split("|"):
        assert any(re.fullmatch(each, name) for name in telemetry.NAMES), each


def test_queued_jobs_are_told_of_each_model_over_its_lanes_and_of_idle_ones() -> None:
    now = datetime.now(UTC)
    engines = [Engine(name=name, model=name, max_batch_size=4, max_blocks=64, seen_at=now) for name in "ab"]
    backlogs = [
        Backlog("a", "batch", 3, 300, now - timedelta(seconds=50)),
        Backlog("a", "interactive", 2, 20, now - timedelta(seconds=5)),
        Backlog("of no engine", "batch", 1, 10, now - timedelta(seconds=70)),
    ]
    usages = [EngineUsage(each, held_slots=0, held_blocks=0) for each in engines]
    told = queue_exposition(MetricsSnapshot({"queued": 6}, backlogs, usages, 0, 0, now)).decode()
    samples = {(each.name, *each.labels.values()): each.value for of in parse(told) for each in of.samples}
    queued = {model: samples["longbatch_queued_jobs", model] for model in ("a", "b", "of no engine")}
    assert queued == {"a": 5, "b": 0, "of no engine": 1}
    assert samples["longbatch_queued_tokens",] == 330
    ages = [samples["longbatch_oldest_queued_seconds", lane] for lane in ("batch", "interactive")]
    assert ages == [70, 5]


def test_the_documentation_names_every_metric() -> None:
    documented = named_in((REPOSITORY / "docs" / "metrics.md").read_text())
    ours = {name for name in registered() if name.startswith("longbatch_")}
    assert documented - OF_THE_LIBRARY == ours


def test_the_documentation_names_the_gpu_s_metrics_that_the_dashboard_shows() -> None:
    shown = set(re.findall(r"\b(?:nv_gpu|DCGM)_\w+", "\n".join(expressions())))
    documented = set(re.findall(r"`((?:nv_gpu|DCGM)_\w+)`", (REPOSITORY / "docs" / "metrics.md").read_text()))
    assert shown
    assert shown <= documented


@pytest.mark.parametrize("name", ["job.claimed", "lease.lost", "metrics.ready"])
def test_events_are_counted_by_their_names(name: str) -> None:
    process = ProcessMetrics()
    process.events.count(name)
    process.events.count("of another library")
    assert process.registry.get_sample_value("longbatch_events_total", {"event": name}) == 1
    assert (
        process.registry.get_sample_value("longbatch_events_total", {"event": "of another library"}) is None
    )


def test_every_event_name_is_known() -> None:
    names = {value for name, value in vars(telemetry).items() if name.isupper() and isinstance(value, str)}
    assert names == telemetry.NAMES
    assert len(names) > 30
