"""`longbatch up` and other commands as their user runs them, each with a home of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.stack.servers.postgres import EmbeddedPostgres
from support import PATIENCE, eventually

_COMMAND = (sys.executable, "-P", "-c", "from longbatch.cli import main; main()")


def longbatch(*arguments: str, home: Path) -> "subprocess.CompletedProcess[str]":
    """A command that ends."""
    return subprocess.run(
        [*_COMMAND, *arguments],
        env={**os.environ, "XDG_DATA_HOME": str(home)},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


@contextmanager
def up(home: Path, *arguments: str) -> Iterator[Path]:
    """A ready `longbatch up` in the default directory of this home; yields what it prints."""
    output = home / "console"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*_COMMAND, "up", "--port", "0", *arguments],
            env={**os.environ, "XDG_DATA_HOME": str(home)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:

        def is_ready() -> bool:
            assert process.poll() is None, output.read_text()
            return (home / "longbatch" / "ready.json").exists()

        eventually(is_ready, timeout=90)
        yield output
    finally:
        process.terminate()
        process.wait(PATIENCE)
        EmbeddedPostgres(home / "longbatch" / "postgres").remove()
