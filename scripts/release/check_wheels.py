"""Install both wheels into empty environments, run a stack from one and use it from the other.

`make check-wheels` prints what each environment costs and how long the first summary takes. It needs the
package index, and half a gigabyte for the server's environment.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.release import version

_READY_SECONDS: Final = 180.0
_CLIENT: Final = """
import sys
from longbatch import Client
with Client() as lb:
    for doc in lb.summarize(sys.argv[1], length=64):
        print(doc.path, doc.summary, doc.error, doc.warnings)
        assert doc.summary, doc
    assert [run.id for run in lb.runs.list()]
"""
_FORBIDDEN: Final = ("api", "cli", "jobs", "worker", "migrations", "triton")


@dataclass(frozen=True)
class Environment:
    """A virtual environment with what it cost.

    Attributes:
        seconds: that the installation took.
        megabytes: of its site-packages.
        packages: installed ones, without pip.
    """

    folder: Path
    seconds: float
    megabytes: float
    packages: int

    def program(self, name: str) -> str:
        """Return the path of a program."""
        return str(self.folder / "bin" / name)


def install(folder: Path, requirements: Sequence[str], *, wheels: Path) -> Environment:
    """Make an empty environment and install these requirements."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = str(folder / "bin" / "python")
    began = time.monotonic()
    pip = [python, "-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--find-links", wheels, *requirements], check=True)
    seconds = time.monotonic() - began
    names = {each.name.partition("-")[0] for each in folder.glob("lib/*/site-packages/*.dist-info")}
    packages = names - {"pip", "setuptools"}
    size = sum(file.stat().st_size for file in (folder / "lib").rglob("*") if file.is_file())
    return Environment(folder, seconds, size / 2**20, len(packages))


def check_names(environment: Environment) -> None:
    """Check that the server put no name of its own at the top.

    Raises:
        SystemExit: it did.
    """
    code = f"import importlib.util as u; print([n for n in {_FORBIDDEN!r} if u.find_spec(n)])"
    found = subprocess.run(
        [environment.program("python"), "-P", "-c", code], check=True, capture_output=True, text=True, cwd="/"
    )
    if found.stdout.strip() != "[]":
        raise SystemExit(f"the environment has top-level packages of the server: {found.stdout}")


def measure(environment: Environment, variables: Mapping[str, str]) -> dict[str, float]:
    """Return the CPU seconds of `longbatch --help` and of importing the client, the least of five."""
    commands = {
        "longbatch --help": [environment.program("longbatch"), "--help"],
        "import longbatch": [environment.program("python"), "-c", "import longbatch"],
        "from longbatch import Client": [environment.program("python"), "-c", "from longbatch import Client"],
    }
    found: dict[str, float] = {}
    for name, command in commands.items():
        times = []
        for _ in range(6):  # the first one compiles
            before = os.times()
            subprocess.run(command, check=True, capture_output=True, env=variables)
            after = os.times()
            spent = after.children_user + after.children_system
            times.append(spent - before.children_user - before.children_system)
        found[name] = min(times)
    return found


def first_answer(
    server: Environment, client: Environment, folder: Path, up: Sequence[str]
) -> tuple[float, float]:
    """Start a stack and summarize a folder from the other environment.

    Returns:
        The seconds until the stack is ready, and from then until the client has its summaries.
    """
    home, ready = folder / "home", folder / "home" / ".local" / "share" / "longbatch" / "ready.json"
    documents = folder / "reports"
    documents.mkdir()
    (documents / "bridge.txt").write_text(
        "The bridge opened in 1932. It carries eight lanes of traffic. " * 30
    )
    home.mkdir()
    variables = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    began = time.monotonic()
    with (folder / "up.log").open("wb") as log:
        stack = subprocess.Popen(
            [server.program("longbatch"), "up", "--port", "0", *up],
            env=variables,
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        while not ready.exists():
            if stack.poll() is not None or time.monotonic() - began > _READY_SECONDS:
                raise SystemExit(f"the stack did not start:\n{(folder / 'up.log').read_text()}")
            time.sleep(0.1)
        ready_after = time.monotonic() - began
        command = [client.program("python"), "-c", _CLIENT, str(documents)]
        subprocess.run(command, check=True, env=variables, cwd=folder)
        return ready_after, time.monotonic() - began - ready_after
    finally:
        stack.send_signal(signal.SIGTERM)
        try:
            stack.wait(60)
        finally:
            stack.kill()


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", type=Path, help="folder of both wheels")
    parser.add_argument("up", nargs="*", help="options of `longbatch up`")
    options = parser.parse_args()
    wheels = options.wheels.resolve()
    with tempfile.TemporaryDirectory(prefix="longbatch-wheels-") as name:
        folder = Path(name)
        client = install(folder / "client", [f"longbatch=={version.read()}"], wheels=wheels)
        server = install(folder / "server", [f"longbatch-server[local]=={version.read()}"], wheels=wheels)
        for title, each in (("client", client), ("server", server)):
            cost = f"{each.packages} packages, {each.megabytes:,.0f} MB, installed in {each.seconds:.0f} s"
            sys.stdout.write(f"{title}: {cost}\n")
            check_names(each)
            for what, seconds in measure(each, {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}).items():
                sys.stdout.write(f"  {what}: {seconds:.2f} s of CPU\n")
        ready, answered = first_answer(server, client, folder, options.up)
        sys.stdout.write(
            f"up: ready after {ready:.0f} s; the client's first summary {answered:.1f} s later\n"
        )


if __name__ == "__main__":
    main()
