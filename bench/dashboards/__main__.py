"""`python -m bench.dashboards`: draw the panels of monitoring/dashboard.json from real data, but GPUs'.

A stack runs under the soak's load and faults, Debian's Prometheus scrapes it and evaluates the alerts, and
each panel's queries are run there, as Grafana would. The exit status is 1 if a query or an alert fails, or a
panel has no data.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.dashboards.picture import Panel, draw, legend_of
from bench.dashboards.prometheus import PROGRAM, SCRAPE_S, Prometheus, watching
from bench.soak import killer, receiver
from bench.soak.caller import Caller, Repeats
from bench.soak.journal import Journal
from bench.soak.judged import say
from bench.soak.killer import Killer
from bench.soak.load import ENDPOINT, HOOK, Load
from bench.soak.stacks import LEASE_S, options, subscribe
from cli.stack.stack import Stack
from jobs import open_files

_DASHBOARD = Path(__file__).resolve().parents[2] / "monitoring" / "dashboard.json"
_RATE_INTERVAL = "1m"  # what Grafana puts for $__rate_interval at a scrape interval of 15 s
_PICTURE = Path("docs/dashboard.png")
_OF_GPUS = ("nv_gpu_", "DCGM_")  # metrics of exporters that a machine without a GPU does not have


def main() -> None:
    """Run the load, ask the queries, draw the picture."""
    asked = _arguments()
    if not PROGRAM.exists():
        raise SystemExit(f"There is no {PROGRAM}: run scripts/setup_prometheus.sh.")
    open_files.raise_limit()
    with tempfile.TemporaryDirectory(prefix="longbatch-dashboards-", ignore_cleanup_errors=True) as folder:
        directory = Path(folder)
        directory.chmod(0o711)  # under root, Postgres runs as another user
        stack = Stack(options(directory / "stack", {"LONGBATCH_METRICS__PORT": "0"}))
        try:
            with stack, watching(stack, directory / "prometheus") as prometheus:
                since, faults = time.time(), _work(stack, directory, asked)
                until = time.time()
                panels = [
                    _panel(each, prometheus, since, until)
                    for each in json.loads(_DASHBOARD.read_text())["panels"]
                    if not any(name in each["targets"][0]["expr"] for name in _OF_GPUS)
                ]
                rules, targets, alerts = prometheus.rules(), prometheus.targets(), prometheus.alerts()
        finally:
            stack.remove_data()
    title = (
        f"monitoring/dashboard.json: {(until - since) / 60:.0f} minutes of load with {faults} faults,"
        f" scraped by Prometheus every {SCRAPE_S} s"
    )
    draw(panels, asked.output, title=title, since=since, until=until)
    empty = [each.title for each in panels if not each.curves]
    failed = [name for name, health in rules.items() if health != "ok"]
    figures = {
        "panels": len(panels),
        "curves": sum(len(each.curves) for each in panels),
        "empty": empty,
        "rules": len(rules),
        "rules_that_fail": failed,
        "alerts": alerts,
        "targets": targets,
        "faults": faults,
        "load_average": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(figures, indent=1))  # noqa: T201
    if empty or failed or not rules or set(targets.values()) != {"up"}:
        raise SystemExit(1)


def _work(stack: Stack, directory: Path, asked: argparse.Namespace) -> int:
    """Send the load for so long, with faults in its middle; return how many there were."""
    secrets: dict[str, str] = {}
    journal = Journal(directory / "journal.jsonl")
    url, key = stack.urls.api_url or "", stack.urls.api_key or ""
    faults = Killer(stack, seed=asked.seed, mean_s=20, freeze_s=LEASE_S + 3)
    calm, trouble = threading.Event(), list[str]()
    with receiver.receiving(directory / "webhooks.jsonl", secrets) as port:
        hook = f"http://127.0.0.1:{port}"
        secrets |= {HOOK: stack.webhook_secret, ENDPOINT: subscribe(url, key, hook + ENDPOINT)}
        load = Load(partial(Caller, [url], key, Repeats()), journal, hook + HOOK, asked.seed, asked.rate)
        with load.running():
            third = 60 * asked.minutes / 3
            time.sleep(third)
            killing = threading.Thread(target=killer.attempt, args=(faults, calm, say, trouble))
            killing.start()
            time.sleep(third)
            calm.set()
            killing.join()
            time.sleep(third)
    journal.close()
    if trouble or load.faults:
        raise SystemExit(f"{trouble} {load.faults}")
    return faults.done.total()


def _panel(panel: Mapping[str, Any], prometheus: Prometheus, since: float, until: float) -> Panel:
    """Run the queries of a panel."""
    curves = {}
    for target in panel["targets"]:
        query = target["expr"].replace("$__rate_interval", _RATE_INTERVAL)
        for curve in prometheus.curves(query, since=since, until_at=until, step_s=SCRAPE_S):
            points = [(at, value) for at, value in curve.points if value == value]  # noqa: PLR0124  # no NaN
            if points:
                curves[legend_of(target.get("legendFormat", ""), curve.labels)] = points
    place = panel["gridPos"]
    unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "short")
    return Panel(panel["title"], unit, (place["x"], place["y"], place["w"], place["h"]), curves)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.dashboards", description=__doc__)
    parser.add_argument("--minutes", type=float, default=6.0, help="of load")
    parser.add_argument("--rate", type=float, default=3.0, help="1 is about 1.2 jobs a second")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--output", type=Path, default=_PICTURE)
    return parser.parse_args()


if __name__ == "__main__":
    main()
