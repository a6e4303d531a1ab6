"""How to start NVIDIA's tritonserver with a local engine, without Docker, GPU or root."""

import ctypes.util
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final
from uuid import uuid4

from cli.stack import ports
from cli.stack.errors import StackError
from cli.stack.loopback import succeeds
from cli.stack.servers import model_repository
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.transformers_options import TransformersOptions
from worker.engine.triton.server_flags import KEEPALIVE

LOOPBACK: Final = ports.LOOPBACK
# Seconds after SIGTERM. Unloading a model takes 1.5 of them, or twice that on a busy CPU. A client's idle
# stream, or one cut in the middle of a response, holds the server forever: kill it then.
EXIT_TIMEOUT: Final = 4
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


class TritonUnavailableError(StackError):
    """The local Triton server cannot run on this machine."""

    code = "triton_unavailable"


@dataclass(frozen=True, slots=True)
class TritonLaunch:
    """The command that starts a prepared server, and its ports.

    Attributes:
        argv: the command; its relative paths require `cwd`.
        env: the whole environment.
        cwd: the directory that `prepare` filled.
        shm_prefix: prefix of the names of its shared memory.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: Path
    grpc_port: int
    http_port: int
    metrics_port: int
    shm_prefix: str


def prepare(
    directory: Path,
    *,
    engine: EngineOptions | TransformersOptions,
    grpc_port: int,
    http_port: int,
    metrics_port: int,
    address: str = LOOPBACK,
) -> TritonLaunch:
    """Write backend, model repository and engine description into `directory`.

    Removes what an earlier launch left there, and its shared memory. Call it before each start.

    Raises:
        TritonUnavailableError: the wheel or libpython is missing; the message says what to install.
    """
    wheel = _Wheel.find()
    libpython = find_libpython()
    directory.mkdir(parents=True, exist_ok=True)
    _remove_shared_memory(directory)
    shm_prefix = f"longbatch-{uuid4().hex[:12]}-"
    (directory / "shm-prefix").write_text(shm_prefix)
    _copy_backend(wheel, directory / "backends" / "python")
    model_repository.render(engine, http_port, directory)
    return TritonLaunch(
        argv=[str(wheel.server), *_flags(address, grpc_port, http_port, metrics_port, shm_prefix)],
        env=_environment(wheel, libpython),
        cwd=directory,
        grpc_port=grpc_port,
        http_port=http_port,
        metrics_port=metrics_port,
        shm_prefix=shm_prefix,
    )


def is_ready(http_port: int, *, metrics_port: int | None = None, timeout: float = 2) -> bool:
    """Return True if the server on this loopback port is ready to serve its model.

    Args:
        http_port: of its health check.
        metrics_port: of its metrics, which it opens last; None does not check them.
        timeout: seconds for each reply.
    """
    is_healthy = succeeds(http_port, "/v2/health/ready", timeout=timeout)
    return is_healthy and (metrics_port is None or succeeds(metrics_port, "/metrics", timeout=timeout))


def find_libpython(version: str = _PYTHON) -> Path | None:
    """Find the directory with this Python version's shared library.

    Returns:
        None if the system's loader finds it.

    Raises:
        TritonUnavailableError: it is missing; the message says what to install.
    """
    name = f"libpython{version}.so.1.0"
    libdir, multiarch = (sysconfig.get_config_var(variable) or "" for variable in ("LIBDIR", "MULTIARCH"))
    for folder in (Path(libdir), Path(sys.base_prefix, "lib"), Path(libdir, multiarch)):
        if (folder / name).is_file():
            return folder
    # On Linux find_library asks ldconfig, which may name another file of the same library.
    if ctypes.util.find_library(f"python{version}") == name:
        return None
    raise TritonUnavailableError(
        f"{name} is missing, which Triton's Python backend needs: install Debian's or Ubuntu's package "
        f"libpython{version}, or use a Python built with --enable-shared."
    )


@dataclass(frozen=True)
class _Wheel:
    """The paths inside the wheel nvidia-pytriton."""

    server: Path
    backend: Path
    stub: Path
    libraries: Path

    @classmethod
    def find(cls) -> "_Wheel":
        """Find the installed wheel without importing it."""
        try:
            site = Path(str(metadata.distribution("nvidia-pytriton").locate_file("")))
        except metadata.PackageNotFoundError as error:
            raise TritonUnavailableError(
                "The wheel nvidia-pytriton is not installed: install Longbatch with its extra `local`."
            ) from error
        root = site / "pytriton" / "tritonserver"
        wheel = cls(
            server=root / "bin" / "tritonserver",
            backend=root / "backends" / "python",
            stub=root / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub",
            libraries=site / "nvidia_pytriton.libs",
        )
        for part in (wheel.server, wheel.backend, wheel.stub, wheel.libraries):
            if not part.exists():
                raise TritonUnavailableError(f"The installed nvidia-pytriton has no {part}.")
        return wheel


def _flags(address: str, grpc_port: int, http_port: int, metrics_port: int, shm_prefix: str) -> list[str]:
    # Relative paths: the backend starts its stub through a shell, unquoted.
    return [
        "--model-repository=models",
        "--backend-directory=backends",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={EXIT_TIMEOUT}",
        f"--http-address={address}",
        f"--http-port={http_port}",
        f"--grpc-address={address}",
        f"--grpc-port={grpc_port}",
        *KEEPALIVE,
        f"--metrics-address={address}",
        f"--metrics-port={metrics_port}",
        "--allow-gpu-metrics=false",
        "--allow-cpu-metrics=false",
        "--pinned-memory-pool-byte-size=0",
        "--http-thread-count=2",
        "--log-format=ISO8601",
    ]


def _environment(wheel: _Wheel, libpython: Path | None) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    libraries = [str(wheel.libraries), *([str(libpython)] if libpython else [])]
    # The stub takes its prefix, and with it numpy, from the first python3 on PATH.
    path = [str(Path(sys.executable).parent), env.get("PATH", os.defpath)]
    return env | {
        "LD_LIBRARY_PATH": os.pathsep.join([*libraries, *filter(None, [env.get("LD_LIBRARY_PATH")])]),
        "PATH": os.pathsep.join(path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _copy_backend(wheel: _Wheel, into: Path) -> None:
    """Copy the backend's library and an executable stub for this Python version."""
    _empty(into)
    for file in wheel.backend.iterdir():
        if file.is_file():
            shutil.copyfile(file, into / file.name)
    stub = Path(shutil.copyfile(wheel.stub, into / wheel.stub.name))
    stub.chmod(0o755)


def _remove_shared_memory(directory: Path) -> None:
    """Free the shared memory that a killed server of this directory left."""
    noted = directory / "shm-prefix"
    if noted.is_file():
        for region in Path("/dev/shm").glob(f"{noted.read_text()}*"):  # noqa: S108 Linux's path
            region.unlink(missing_ok=True)


def _empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
