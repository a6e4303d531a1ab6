"""Target 9: the latency the product adds to one job on an idle engine, before its start and after its end."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import numpy as np

from bench.figures import until
from bench.peers.engine_client import EngineClient
from bench.report import Row, judge
from bench.simulation.workloads import Spec
from bench.stand import trace
from bench.stand.documents import Prompt
from bench.stand.stand import Stand, job_line

# Lets the stand's service worker deliver to the receiver here.
SETTINGS = {"LONGBATCH_WEBHOOKS__ALLOWED_HOSTS": '["127.0.0.1"]'}
SMALL = Spec(prompt_tokens=1_000, output_tokens=64, max_tokens=256, template="small")
_LIMIT_S = 30.0
_PAUSE_S = 0.05  # between two jobs, so that the engine and the worker are idle


@dataclass(frozen=True, slots=True)
class Timed:
    """Latencies of one job, in seconds.

    Attributes:
        to_engine: from just before the request until the job's prefill starts.
        to_claim: of that, until a worker has claimed the job.
        to_record: from the free slot until the database has the job's end.
        to_get: from the free slot until the waiting GET returns.
        to_webhook: from the free slot until the receiver has its event.
    """

    to_engine: float
    to_claim: float
    to_record: float
    to_get: float
    to_webhook: float


@dataclass(slots=True)
class Receiver:
    """The receiver of a webhook.

    Attributes:
        url: where it listens.
        arrived_at: monotonic time of the last event.
    """

    url: str
    arrived: threading.Event = field(default_factory=threading.Event)
    arrived_at: float = 0.0


def latency(stand: Stand, spec: Spec, *, repeats: int) -> Iterator[Row]:
    """Alternate between the product and a direct client, one small job at a time."""
    prompts = stand.author.write([spec] * (2 * repeats), seed=9)
    ours: list[Timed] = []
    direct: list[float] = []
    stand.ledger.clear()
    with stand.worker(), _receiver() as receiver, EngineClient(stand.url("triton_grpc")) as engine:
        for number, prompt in enumerate(prompts):
            if number % 4 in {0, 3}:  # ABBA
                ours.append(_through_us(stand, prompt, receiver))
            else:
                direct.append(_straight(stand, prompt, engine))
            time.sleep(_PAUSE_S)
    before = [each.to_engine - float(np.median(direct)) for each in ours]
    where = f"{spec.prompt_tokens}/{spec.output_tokens} tokens, idle engine"
    scale = f"S={stand.time_scale:g}"
    columns = (
        ("9 submit to engine start, p50, ms", before, 50, "<= 12", "direct gRPC client"),
        ("submit to engine start, p10, ms", before, 10, "", "direct gRPC client"),
        ("9 submit to engine start, p99, ms", before, 99, "<= 35", "direct gRPC client"),
        ("9 end to GET, p50, ms", [each.to_get for each in ours], 50, "<= 10", "engine's last response"),
        (
            "9 end to webhook, p50, ms",
            [each.to_webhook for each in ours],
            50,
            "<= 25",
            "engine's last response",
        ),
        ("end to GET, p10, ms", [each.to_get for each in ours], 10, "", "engine's last response"),
        ("of it: submit to claim, p50, ms", [each.to_claim for each in ours], 50, "", ""),
        ("of it: submit to claim, p90, ms", [each.to_claim for each in ours], 90, "", ""),
        ("of it: end to record, p50, ms", [each.to_record for each in ours], 50, "", ""),
        ("end to GET, p99, ms", [each.to_get for each in ours], 99, "", "engine's last response"),
        ("end to webhook, p99, ms", [each.to_webhook for each in ours], 99, "", "engine's last response"),
        ("direct client to engine start, p50, ms", direct, 50, "", ""),
    )
    for name, seconds, percentile, goal, peer in columns:
        found = 1000 * float(np.percentile(seconds, percentile))
        yield judge(name, where, [found], goal=goal, peer=peer, scale=scale, seeds=repeats)


def _through_us(stand: Stand, prompt: Prompt, receiver: Receiver) -> Timed:
    receiver.arrived.clear()
    sent_at = time.monotonic()
    job_id = stand.post(job_line(prompt, webhook_url=receiver.url))
    answer = stand.http.get(f"/v1/jobs/{job_id}", params={"wait": _LIMIT_S})
    got_at = time.monotonic()
    if answer.json()["state"] != "completed" or not receiver.arrived.wait(_LIMIT_S):
        raise TimeoutError(f"no response or no webhook within {_LIMIT_S:g} s: {answer.text[:200]}")
    request = _last(stand, since=sent_at)
    return Timed(
        to_engine=request.began - sent_at,
        to_claim=stand.ledger.starts([job_id])[0] - sent_at,
        to_record=stand.ledger.last_end([job_id]) - request.ended,
        to_get=got_at - request.ended,
        to_webhook=receiver.arrived_at - request.ended,
    )


def _straight(stand: Stand, prompt: Prompt, engine: EngineClient) -> float:
    sent_at = time.monotonic()
    engine.ask(prompt.ids, prompt.spec.max_tokens, request_id="direct")
    return _last(stand, since=sent_at).began - sent_at


def _last(stand: Stand, *, since: float) -> trace.Request:
    """Return the only request since then."""
    seen = until(
        lambda: trace.read(stand.trace, since=since, until=time.monotonic()).requests, seconds=1, every=0.01
    )
    return seen[-1]


@contextmanager
def _receiver() -> Iterator[Receiver]:
    """Run a server that records when an event arrives."""
    made: list[Receiver] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that http.server calls
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            made[0].arrived_at = time.monotonic()
            self.send_response(httpx2.codes.NO_CONTENT)
            self.end_headers()
            made[0].arrived.set()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.append(Receiver(f"http://127.0.0.1:{server.server_port}/events"))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield made[0]
        finally:
            server.shutdown()
            thread.join()
