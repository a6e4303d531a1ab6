"""`python -m bench.tracing`: draw the trace of one summary, from its submission to its webhook.

A stack of its own runs, with the local engine on Triton; a collector and a receiver of webhooks listen on
loopback. The exit status is 1 if the trace lacks a kind of span.
"""

import argparse
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from pydoc_data.topics import topics
from threading import Event, Thread
from typing import Final

import httpx2

from bench.figures import until
from bench.tracing.picture import draw
from bench.tracing.receiver import SeenSpan, TraceReceiver, receiving
from cli.stack.options import StackOptions
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.stack import Stack
from jobs import open_files
from jobs.prompts.tokenizer_files import tokenizer_directory

_PICTURE: Final = Path("docs/trace.png")
_TRACE_ID: Final = "5ca1ab1e" * 4
_CALLER: Final = "0ddba11005caff01"
_CHUNK_TOKENS: Final = 6000
_TEXT_CHARS: Final = 70_000  # three chunks of that size
_PATIENCE_SECONDS: Final = 180.0
# Each kind of span that the trace of a summary has.
KINDS: Final = frozenset({"POST", "summary", "plan", "job", "wait", "chat", "record", "webhook"})


def main() -> None:
    """Run one summary, and draw its trace."""
    asked = _arguments()
    open_files.raise_limit()
    collector, told = TraceReceiver(), Event()
    with tempfile.TemporaryDirectory(prefix="longbatch-tracing-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # under root, Postgres runs as another user
        with receiving(collector), _listening(told) as url:
            stack = Stack(_options(Path(folder) / "stack", collector.url, asked.time_scale))
            try:
                with stack:
                    _summarize(stack, url)
                    until(told.is_set, seconds=_PATIENCE_SECONDS)
                    until(lambda: collector.of_trace(_TRACE_ID).keys() >= KINDS, seconds=_PATIENCE_SECONDS)
            finally:
                stack.remove_data()
    spans = [each for spans in collector.of_trace(_TRACE_ID).values() for each in spans]
    speed = f"{asked.time_scale:g} times as fast as an A6000"
    draw(spans, asked.output, title=f"One summary of three chunks over the local engine, {speed}")
    print(json.dumps(_figures(spans), indent=1))  # noqa: T201


def _summarize(stack: Stack, webhook_url: str) -> None:
    """Ask for the summary of one document, below a caller's span."""
    key = stack.urls.api_key or ""
    client = httpx2.Client(
        base_url=stack.urls.api_url or "", headers={"Authorization": f"Bearer {key}"}, trust_env=False
    )
    with client as http:
        text = "\n\n".join(topics[name] for name in sorted(topics))[:_TEXT_CHARS]
        sent = http.post(
            "/v1/documents",
            params={"filename": "reference.txt"},
            content=text.encode(),
            headers={"Content-Type": "text/plain"},
        )
        asked = {
            "documents": [sent.raise_for_status().json()["id"]],
            "length": 120,
            "chunk_tokens": _CHUNK_TOKENS,
            "webhook_url": webhook_url,
        }
        traced = {"traceparent": f"00-{_TRACE_ID}-{_CALLER}-01"}
        http.post("/v1/summaries", json=asked, headers=traced).raise_for_status()


@contextmanager
def _listening(told: Event) -> Iterator[str]:
    """Take webhooks, and tell when one has come; gives the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Take an event."""
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(204)
            self.end_headers()
            told.set()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/summaries"
        server.shutdown()


def _options(directory: Path, collector_url: str, time_scale: float) -> StackOptions:
    return StackOptions(
        directory=directory,
        api_port=0,
        engine=EngineOptions(
            mode="extractive", tokenizer_dir=tokenizer_directory(None), time_scale=time_scale
        ),
        environment={
            **os.environ,
            "LONGBATCH_TRACES__ENDPOINT": collector_url,
            "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS": '["127.0.0.1"]',
        },
    )


def _figures(spans: list[SeenSpan]) -> dict[str, object]:
    first, last = min(each.began for each in spans), max(each.ended for each in spans)
    return {
        "spans": dict(Counter(each.name for each in spans)),
        "seconds": round((last - first) / 1e9, 2),
        "load_average": round(os.getloadavg()[0], 1),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.tracing", description=__doc__)
    parser.add_argument("--output", type=Path, default=_PICTURE)
    parser.add_argument("--time-scale", type=float, default=4.0, help="how fast the engine is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
