"""The addresses of a running stack, and the ready file that lists them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from longbatch.whole_files import write_whole

# Every process of the stack, by its name in the ready file and in the logs.
API = "api"
INFERENCE_WORKER = "inference_worker"
SERVICE_WORKER = "service_worker"
POSTGRES = "postgres"
REDIS = "redis"
TRITON = "triton"
LLAMA_CPP = "llama_cpp"  # only in a stack that runs it in Triton's place
# What the API's readiness calls all engines and all workers.
ENGINE_COMPONENT = "engine"
WORKERS_COMPONENT = "workers"
PARTS = (API, INFERENCE_WORKER, SERVICE_WORKER, POSTGRES, REDIS, TRITON)


@dataclass(frozen=True)
class Urls:
    """Addresses of the stack's servers; None if the stack has no such server.

    Attributes:
        console_url: None also if the console is off.
        api_key: the stack's first key; None also for a stack without a database.
        triton_grpc: host:port, for gRPC clients.
        triton_http: None also for an external server without LONGBATCH_TRITON__HTTP_URL.
        triton_metrics: None also for an external server without LONGBATCH_TRITON__METRICS_URL.
        tls_certificate: file of the API's own certificate, for clients that have no authority for it. None,
            and not in the file, without TLS.
        engine_settings: variables that describe the stack's own llama.cpp, or its first engine that ran
            already, to a worker or a command. None, and not in the file, for any other engine.
    """

    api_url: str | None = None
    console_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    database_url: str | None = None
    broker_url: str | None = None
    triton_grpc: str | None = None
    triton_http: str | None = None
    triton_metrics: str | None = None
    tls_certificate: str | None = None
    engine_settings: Mapping[str, str] | None = None


def write_ready_file(path: Path, urls: Urls, pids: dict[str, int | None]) -> None:
    """Write addresses and process ids; private, because the URLs hold secrets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = asdict(urls)
    for name in ("tls_certificate", "engine_settings"):
        if found[name] is None:
            del found[name]
    write_whole(path, json.dumps({**found, "pids": pids}, indent=2) + "\n")
