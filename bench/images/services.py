"""The services of docker-compose.yml, started by podman as Compose would start them.

Podman's own network needs a firewall that not every machine has: all services share one network instead, that
of this process, and find each other by the names that Compose gives them.
"""

import re
import shlex
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

_PATIENCE_S: Final = 180
_LOOK_EVERY_S: Final = 0.25


class ContainerError(Exception):
    """Podman refused a command, or a container did not become what it should."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service.

    Attributes:
        declared: what docker-compose.yml says of it, with its variables filled in.
        image: that is run.
        environment: on top of its own.
    """

    name: str
    declared: Mapping[str, Any]
    image: str
    environment: Mapping[str, str]

    def arguments(self) -> list[str]:
        """Return what podman's `run` and `create` take, up to the image's name."""
        declared = self.declared
        given = {**declared.get("environment", {}), **self.environment}
        # Those without a value are of the shell that runs Compose.
        found = [f"--env={name}={value}" for name, value in given.items() if value is not None]
        found += [f"--tmpfs={each}" for each in declared.get("tmpfs", ())]
        found += [f"--cap-drop={each.lower()}" for each in declared.get("cap_drop", ())]
        found += [f"--security-opt={each.partition(':')[0]}" for each in declared.get("security_opt", ())]
        found += [
            f"--volume={each}" for each in declared.get("volumes", ()) if not each.startswith((".", "/", ":"))
        ]
        found += [f"--restart={declared['restart']}"] if "restart" in declared else []
        found += [f"--user={declared['user']}"] if "user" in declared else []
        found += [f"--shm-size={declared['shm_size']}"] if "shm_size" in declared else []
        found += ["--read-only", "--read-only-tmpfs=false"] if declared.get("read_only") else []
        if check := declared.get("healthcheck"):
            kind, *words = check["test"]  # podman 4.3 takes no list of words, so a shell reads them
            found.append(f"--health-cmd={words[0] if kind == 'CMD-SHELL' else shlex.join(words)}")
        return found

    @property
    def command(self) -> list[str]:
        """What the container runs; empty: what its image says."""
        command = self.declared.get("command", [])
        return [str(word) for word in command]


def read(file: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Read the services of a compose file; `${NAME}` and what may follow the name is filled in."""

    def filled(text: str) -> str:
        found = re.sub(r"(?<!\$)\$\{(\w+)(?::[-?][^}]*)?\}", lambda each: variables.get(each[1], ""), text)
        return found.replace("$$", "$")

    services: dict[str, Any] = yaml.safe_load(filled(file.read_text()))["services"]
    return services


class Containers:
    """The containers of one run, by the names of their services."""

    def __init__(self, services: Mapping[str, Service], names: list[str]) -> None:
        """Start nothing yet.

        Args:
            services: by their names.
            names: by which the services find each other.
        """
        self._services = services
        self._hosts = [f"--add-host={name}:127.0.0.1" for name in names]

    def start(self, name: str) -> float:
        """Start a service; return after how many seconds it was healthy.

        Raises:
            ContainerError: it did not start, or is not healthy in minutes.
        """
        began = time.monotonic()
        podman("run", "--detach", f"--name={name}", *self._options(name), *self._services[name].command)
        self.until_healthy(name)
        return time.monotonic() - began

    def complete(self, name: str, *command: str) -> str:
        """Run a service, or this command in its place, to its end; return what it printed."""
        options = [each for each in self._options(name) if not each.startswith("--restart=")]
        return podman("run", "--rm", *options, *(command or self._services[name].command))

    def start_again(self, name: str) -> None:
        """Start a container whose process was killed.

        Its restart policy would; podman does that only together with systemd.
        """
        podman("wait", name)
        podman("start", name)

    def until_healthy(self, name: str) -> None:
        """Wait until the health check succeeds.

        Nothing runs health checks here by itself: podman leaves that to systemd.

        Raises:
            ContainerError: it does not in minutes.
        """
        began = time.monotonic()
        while not _succeeds("healthcheck", "run", name):
            if time.monotonic() - began > _PATIENCE_S:
                raise ContainerError(f"{name} is not healthy:\n{podman('logs', '--tail=30', name)}")
            time.sleep(_LOOK_EVERY_S)

    def pid(self, name: str) -> int:
        """Return the container's first process as this machine counts; 0: none runs."""
        return int(podman("inspect", "--format={{.State.Pid}}", name))

    def remove(self) -> None:
        """Remove all containers and their volumes."""
        podman("rm", "--force", "--all", "--time=0", "--volumes")
        podman("volume", "prune", "--force")

    def _options(self, name: str) -> list[str]:
        service = self._services[name]
        here = ["--network=host", "--pull=never", "--log-driver=k8s-file", "--health-interval=disable"]
        return [*here, *self._hosts, *service.arguments(), service.image]


def podman(*arguments: str) -> str:
    """Run podman and return what it printed.

    Raises:
        ContainerError: it failed.
    """
    done = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False)  # noqa: S607  # that of scripts/containers.sh
    if done.returncode != 0:
        raise ContainerError(f"podman {arguments[0]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()


def _succeeds(*arguments: str) -> bool:
    try:
        podman(*arguments)
    except ContainerError:
        return False
    return True
