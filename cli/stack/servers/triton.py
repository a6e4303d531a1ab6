"""NVIDIA's tritonserver with the local engine, on random loopback ports."""

from datetime import timedelta
from pathlib import Path

from cli.stack.ports import LOOPBACK, free_port
from cli.stack.processes import Launch
from cli.stack.server import EmbeddedServer
from cli.stack.servers import triton_server
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.transformers_options import TransformersOptions

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 Linux's path


class EmbeddedTriton(EmbeddedServer):
    """A server whose ports are chosen by the constructor and stay for the object's whole life."""

    name = "triton"

    def __init__(self, directory: Path, engine: EngineOptions | TransformersOptions) -> None:
        self.directory = directory
        # A model's weights may come from a slow disk.
        self.start_timeout = timedelta(seconds=900 if isinstance(engine, TransformersOptions) else 60)
        self._engine = engine
        self._shm_prefix: str | None = None
        self.grpc_port, self.http_port, self.metrics_port = free_port(), free_port(), free_port()

    @property
    def url(self) -> str:
        """The gRPC address, host:port."""
        return f"{LOOPBACK}:{self.grpc_port}"

    @property
    def http_url(self) -> str:
        """The base of its HTTP URLs."""
        return f"http://{LOOPBACK}:{self.http_port}"

    @property
    def metrics_url(self) -> str:
        """URL of its Prometheus metrics."""
        return f"http://{LOOPBACK}:{self.metrics_port}/metrics"

    def launch(self) -> Launch:
        """Write backend and model repository and return how to start it.

        Raises:
            LongbatchError: the directory is in use, or the server cannot run on this machine.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._hold(self.directory)
        prepared = triton_server.prepare(
            self.directory / "server",
            engine=self._engine,
            grpc_port=self.grpc_port,
            http_port=self.http_port,
            metrics_port=self.metrics_port,
        )
        self._shm_prefix = prepared.shm_prefix
        return Launch(
            argv=tuple(prepared.argv),
            env=prepared.env,
            directory=prepared.cwd,
            grace=timedelta(seconds=2),  # it often hangs after SIGTERM, and has no state to lose
            guarded=True,  # its stubs, which hold the models, would outlive it by minutes
        )

    def is_ready(self) -> bool:
        """Return True if the server and its model are ready."""
        return triton_server.is_ready(self.http_port, metrics_port=self.metrics_port)

    def release(self) -> None:
        """Free the shared memory that a killed server leaves, and release its directory."""
        if self._shm_prefix is not None:
            for region in _SHARED_MEMORY.glob(f"{self._shm_prefix}*"):
                region.unlink(missing_ok=True)
        super().release()
