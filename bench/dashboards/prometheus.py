"""Debian's Prometheus as a child: it scrapes a stack, evaluates our alerts and answers queries."""

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from bench.figures import until
from cli.stack.ports import LOOPBACK, free_port
from cli.stack.ready import INFERENCE_WORKER, SERVICE_WORKER
from cli.stack.stack import Stack

PROGRAM: Final = Path(".prometheus/usr/bin/prometheus").absolute()
RULES: Final = Path(__file__).resolve().parents[2] / "monitoring" / "rules.yml"
SCRAPE_S: Final = 5
_READY: Final = "metrics.ready"


@dataclass(frozen=True, slots=True)
class Curve:
    """What one query of a panel found.

    Attributes:
        labels: of the series.
        points: Unix time and value.
    """

    labels: Mapping[str, str]
    points: list[tuple[float, float]]


class Prometheus:
    """A running server, by its HTTP API."""

    def __init__(self, url: str) -> None:
        self._http = httpx2.Client(base_url=url, trust_env=False, timeout=30)

    def is_ready(self) -> bool:
        """Return True if it answers queries."""
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx2.HTTPError:
            return False

    def curves(self, query: str, *, since: float, until_at: float, step_s: float) -> list[Curve]:
        """Run a query over a span of Unix time.

        Raises:
            ValueError: Prometheus refuses it.
        """
        span = {"start": since, "end": until_at, "step": step_s}
        found = self._get("/api/v1/query_range", query=query, **span)["result"]
        return [Curve(each["metric"], [(at, float(value)) for at, value in each["values"]]) for each in found]

    def alerts(self) -> dict[str, str]:
        """Return the alerts that are pending or firing, by name."""
        return {each["labels"]["alertname"]: each["state"] for each in self._get("/api/v1/alerts")["alerts"]}

    def targets(self) -> dict[str, str]:
        """Return how the last scrape of each target went, by instance."""
        found = self._get("/api/v1/targets")["activeTargets"]
        return {each["labels"]["instance"]: each["health"] for each in found}

    def rules(self) -> dict[str, str]:
        """Return how the last evaluation of each alert went, by name."""
        groups = self._get("/api/v1/rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def _get(self, path: str, **params: str | float) -> Any:  # noqa: ANN401  # as the API answers
        answer = self._http.get(path, params=params).json()
        if answer["status"] != "success":
            raise ValueError(f"{params.get('query', path)}: {answer.get('error')}")
        return answer["data"]


@contextmanager
def watching(stack: Stack, directory: Path) -> Iterator[Prometheus]:
    """Run Prometheus for the block; it finds the workers' ports even after they started anew.

    Args:
        stack: whose workers take any free port for metrics.
        directory: for its data; empty.
    """
    port, workers = free_port(), directory / "workers.json"
    directory.mkdir(parents=True)
    workers.write_text("[]")
    config = directory / "prometheus.yml"
    config.write_text(json.dumps(_config(stack, workers)))  # YAML, too
    command = [
        *(str(PROGRAM), f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}"),
        *(f"--web.listen-address={LOOPBACK}:{port}", "--log.level=warn"),
    ]
    over = threading.Event()
    finder = threading.Thread(target=_find_workers, args=(stack, workers, over), name="finder")
    with (directory / "prometheus.log").open("w") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
    finder.start()
    try:
        made = Prometheus(f"http://{LOOPBACK}:{port}")
        until(made.is_ready, seconds=60)
        yield made
    finally:
        over.set()
        finder.join()
        child.terminate()
        child.wait()


def _config(stack: Stack, workers: Path) -> dict[str, object]:
    api = (stack.urls.api_url or "").removeprefix("http://")
    return {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "longbatch-api",
                "static_configs": [{"targets": [api], "labels": {"instance": "api"}}],
            },
            {
                "job_name": "longbatch-workers",
                "file_sd_configs": [{"files": [str(workers)], "refresh_interval": "1s"}],
            },
        ],
    }


def _find_workers(stack: Stack, file: Path, over: threading.Event) -> None:
    """Tell Prometheus the port of each worker whenever one starts."""
    told: list[object] = []
    while True:
        targets: list[object] = [
            {"targets": [address], "labels": {"instance": name.replace("_", " ")}}
            for name in (INFERENCE_WORKER, SERVICE_WORKER)
            if (address := _address_in(stack.directory / "logs" / f"{name}.log"))
        ]
        if targets != told:
            draft = file.with_suffix(".new")
            draft.write_text(json.dumps(targets))
            draft.rename(file)
            told = targets
        if over.wait(1):
            return


def _address_in(log: Path) -> str | None:
    """Return the address of the last port for metrics that this log names."""
    try:
        lines = [line for line in log.read_text().splitlines() if _READY in line]
        url: str = json.loads(lines[-1])["url"]
    except (OSError, IndexError, ValueError):
        return None
    return url.removeprefix("http://").removesuffix("/metrics")
