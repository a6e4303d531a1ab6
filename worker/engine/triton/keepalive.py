"""A test of whether a server lets clients ping during long silences; no query shows it."""

import threading
from typing import Final

import grpc

from jobs.diagnostics import Finding
from worker.engine.triton.server_flags import KEEPALIVE

# A server without the flags closes the connection at the third ping; with them it accepts one every 5 s.
_PING_MS: Final = 6_000
_WATCH_SECONDS: Final = 32.0
_READY_SECONDS: Final = 5.0


def try_keepalive(url: str, *, seconds: float = _WATCH_SECONDS) -> Finding:
    """Ping on a silent connection for `seconds` and report whether it survives."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", _PING_MS),
        ("grpc.keepalive_timeout_ms", _PING_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_http_proxy", 0),
    ]
    lost = threading.Event()
    was_ready = threading.Event()

    def note(state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            was_ready.set()
        elif was_ready.is_set():
            lost.set()

    with grpc.insecure_channel(url, options=options) as channel:
        channel.subscribe(note, try_to_connect=True)
        if not was_ready.wait(_READY_SECONDS):
            return Finding("keepalive", "unknown", f"{url} cannot be reached")
        if lost.wait(seconds):
            detail = "the server closed a silent connection that pinged every 6 s"
            return Finding("keepalive", "failed", detail, f"start it with {' '.join(KEEPALIVE)}")
    return Finding("keepalive", "ok", f"a silent connection survived {seconds:g} s of pings")
