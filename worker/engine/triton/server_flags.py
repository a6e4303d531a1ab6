"""The flags that keep tritonserver from closing connections that the worker keeps alive."""

from typing import Final

# Triton's defaults close a connection that pings during a long silent prefill; these allow a ping every 5 s
# (docs/operations.md).
KEEPALIVE: Final = (
    "--grpc-keepalive-time=10000",
    "--grpc-keepalive-timeout=5000",
    "--grpc-keepalive-permit-without-calls=1",
    "--grpc-http2-min-recv-ping-interval-without-data=5000",
    "--grpc-http2-max-pings-without-data=0",
)
