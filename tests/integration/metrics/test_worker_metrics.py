"""What worker processes tell Prometheus: each job, token and claim once, and not whose they are."""

import json
import socket
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from cli.stack.ports import free_port
from cli.stack.servers.valkey import EmbeddedValkey
from jobs.settings import DatabaseSettings, MetricsSettings, Settings
from local_engine import RunningEngine
from support import NO_CERTIFICATES, eventually
from worker.metrics.process import ProcessMetrics
from worker_support import ENGINE, Queue, WorkerProcess, settings_for

NUM_JOBS = 6  # more than slots

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def settings(
    database_settings: DatabaseSettings, valkey: EmbeddedValkey, synthetic: RunningEngine
) -> Settings:
    made = settings_for(database_settings, valkey.url, synthetic)
    return made.model_copy(update={"metrics": MetricsSettings(port=0)})


def scrape(log: Path) -> Samples:
    """What the worker with this log answers, once it answers."""
    lines = eventually(lambda: [line for line in log.read_text().splitlines() if '"metrics.ready"' in line])
    answer = httpx2.get(json.loads(lines[0])["url"], trust_env=False, verify=NO_CERTIFICATES)
    assert answer.status_code == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse(answer.text)
        for sample in family.samples
    }


def of_engine(found: Samples, name: str, **labels: str) -> float:
    return value_of(found, name, engine=ENGINE, **labels)


def value_of(found: Samples, name: str, **labels: str) -> float:
    return found[f"longbatch_{name}", frozenset(labels.items())]


def test_every_job_token_and_claim_is_counted_once(queue: Queue, settings: Settings, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    worker = WorkerProcess("inference", settings, log)
    try:
        job_ids = [queue.submit(f"Document {number}.", max_tokens=20) for number in range(NUM_JOBS)]
        jobs = [queue.ended(job_id) for job_id in job_ids]
        eventually(lambda: of_engine(scrape(log), "job_run_seconds_count", lane="batch") == NUM_JOBS)
        found = scrape(log)
    finally:
        worker.end()
    assert of_engine(found, "runs_total", lane="batch", outcome="finished", reason="length") == NUM_JOBS
    assert of_engine(found, "claims_total", lane="batch") == NUM_JOBS
    assert value_of(found, "jobs_ended_total", state="completed") == NUM_JOBS
    assert of_engine(found, "prompt_tokens_total") == sum(job.prompt_tokens or 0 for job in jobs)
    assert of_engine(found, "completion_tokens_total") == NUM_JOBS * 20
    assert of_engine(found, "recomputed_tokens_total") == 0
    for name in ("job_wait", "job_run", "time_to_first_token"):
        assert of_engine(found, f"{name}_seconds_count", lane="batch") == NUM_JOBS
        assert of_engine(found, f"{name}_seconds_sum", lane="batch") > 0
    waited = sum((job.started_at - job.created_at).total_seconds() for job in jobs if job.started_at)
    assert of_engine(found, "job_wait_seconds_sum", lane="batch") == pytest.approx(waited)
    assert of_engine(found, "time_per_output_token_seconds_count") == NUM_JOBS
    assert of_engine(found, "engine_up") == 1
    assert of_engine(found, "engine_running_jobs") == 0
    assert value_of(found, "events_total", event="job.claimed") == NUM_JOBS
    assert value_of(found, "events_total", event="lease.lost") == 0
    assert found["process_open_fds", frozenset()] > 0


def test_idle_slots_have_a_reason(queue: Queue, settings: Settings, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"

    def idle() -> dict[str, float]:
        named = (
            (dict(labels), value)
            for (name, labels), value in scrape(log).items()
            if name == "longbatch_engine_idle_slots"
        )
        return {labels["reason"]: value for labels, value in named if value}

    worker = WorkerProcess("inference", settings, log)
    try:
        eventually(lambda: idle() == {"no_jobs": 4})
        running = queue.submit("A long answer.", max_tokens=5000)
        eventually(lambda: idle() == {"no_jobs": 3})
        queue.when(running, lambda job: job.state == "running")
    finally:
        worker.end()


def test_no_label_tells_whose_a_job_is(queue: Queue, settings: Settings, tmp_path: Path) -> None:
    logs = {role: tmp_path / f"{role}.log" for role in ("inference", "service")}
    workers = [WorkerProcess(role, settings, log) for role, log in logs.items()]
    try:
        job_id = queue.submit("A document.", max_tokens=20, is_counted=False)
        queue.ended(job_id)
        eventually(lambda: value_of(scrape(logs["service"]), "round_seconds_count", duty="prepare"))
        found = [scrape(log) for log in logs.values()]
    finally:
        for each in workers:
            each.end()
    names = {label for samples in found for _, labels in samples for label, _ in labels}
    bounded = {"engine", "lane", "outcome", "state", "reason", "event", "duty", "le"}
    of_python = {"implementation", "major", "minor", "patchlevel", "version"}
    assert names <= bounded | of_python
    assert all(
        "longbatch_" in name or name.startswith(("process_", "python_"))
        for samples in found
        for name, _ in samples
    )


@pytest.mark.parametrize(("host", "status"), [("localhost", 200), ("rebound.example", 403), ("", 403)])
def test_a_worker_s_metrics_need_a_loopback_host_on_loopback(host: str, status: int) -> None:
    metrics, port = ProcessMetrics(), free_port()
    metrics.serve(MetricsSettings(port=port))
    try:
        url = f"http://127.0.0.1:{port}/metrics"
        answer = httpx2.get(url, headers={"Host": host}, trust_env=False, verify=NO_CERTIFICATES)
        assert answer.status_code == status
    finally:
        metrics.close()


def test_a_taken_port_costs_no_job(queue: Queue, settings: Settings, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        update = {"metrics": MetricsSettings(port=port)}
        worker = WorkerProcess("inference", settings.model_copy(update=update), tmp_path / "worker.log")
        try:
            assert queue.ended(queue.submit("A document.", max_tokens=5)).state == "completed"
            assert worker.said("metrics.unavailable")
        finally:
            worker.end()
