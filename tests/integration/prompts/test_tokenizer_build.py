"""The bundled tokenizer is built once, by whichever process comes first."""

import os
import subprocess
import sys
from pathlib import Path

from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import ensure_default_tokenizer


def test_two_processes_can_build_the_bundled_tokenizer_at_once(tmp_path: Path) -> None:
    code = "from jobs.prompts.tokenizer import *; print(ensure_default_tokenizer())"
    environment = {
        **os.environ,
        "LONGBATCH_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    builders = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = {builder.communicate(timeout=60)[0].strip() for builder in builders}
    assert [builder.returncode for builder in builders] == [0, 0]
    assert printed == {str(ensure_default_tokenizer(tmp_path))}
    assert [entry.name for entry in tmp_path.iterdir()] == [ensure_default_tokenizer(tmp_path).name]
    assert Tokenizer.load(printed.pop()).num_tokens == 128256
