"""A terminal beside the running stack, and a bucket that its commands may name."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bucket_support import Bucket, serving_bucket
from cli.stack.stack import Stack
from documented.shell import Bash
from system_support import OF_TESTS


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with serving_bucket() as found:
        yield found


@pytest.fixture
def bash(stack: Stack, bucket: Bucket, tmp_path: Path) -> Bash:
    """Run commands as in a terminal beside the stack; they succeed."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    inherited = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
    environment = {
        **inherited,
        **bucket.environment,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "NO_PROXY": "*",
        "LONGBATCH_API_URL": stack.urls.api_url or "",
        "LONGBATCH_API_KEY": stack.urls.api_key or "",
        "LONGBATCH_DATABASE__URL": stack.urls.database_url or "",
    }

    def run(text: str) -> str:
        server = (stack.urls.api_url or "").removeprefix("http://")
        # A terminal knows aliases.
        lines = f"shopt -s expand_aliases\n{text.replace('localhost:8080', server)}"
        done = subprocess.run(
            ["bash", "-euc", lines],  # noqa: S607  # whichever a reader has
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
