"""SGLang's own HTTP server on the CPU, with a scheduler of ours behind it."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Final

from cli.stack.ports import LOOPBACK, free_port
from jobs.prompts.tokenizer import TokenIds, Tokenizer
from jobs.prompts.tokenizer_files import tokenizer_directory
from jobs.settings import EngineSettings, TritonSettings
from scripted_model import ENDLESS, POSITIONS, TEXT
from support import eventually
from worker.engine.client import EngineClient
from worker.engine.engine import ServedModel

PYTHON: Final = Path(".venv-sglang/bin/python")
_SERVER: Final = Path("tests/with_sglang/server/serve.py")
_START_SECONDS: Final = 600.0  # 30 alone, on two cores
_NUM_OPENINGS: Final = 16  # as the scheduler has them


class SglangServer:
    """SGLang's server of one model that has no weights, on a port of its own."""

    def __init__(
        self,
        directory: Path,
        tokenizer: Tokenizer,
        *options: str,
        slots: int = 4,
        pool_tokens: int = 2 * POSITIONS,
        window_pool: int | None = None,
        key: str | None = None,
    ) -> None:
        """Set up without starting it.

        Args:
            directory: of its log and its model's files.
            tokenizer: of the model.
            options: of SGLang besides.
            slots: requests that decode together.
            pool_tokens: of all requests together.
            window_pool: tokens in the pool of windowed layers; None: it has none.
            key: that its clients send.
        """
        self._directory = directory
        self._options = options
        self._text: list[int] = tokenizer.encode_text(TEXT).tolist()
        (self._endless,) = tokenizer.encode_text(ENDLESS).tolist()
        self._conduct = {
            "text": self._text,
            "begin": tokenizer.bos_id,
            "endless": self._endless,
            "slots": slots,
            "pool": pool_tokens,
            "window_pool": window_pool,
            "pace": 0.004,
        }
        self._model_dir = _model(directory / "model", tokenizer)
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        found = {"url": self.url, "api_key": key, "max_input_len": POSITIONS - 1}
        self.settings = EngineSettings.model_validate(found)
        self.client = EngineClient(TritonSettings(), self.settings, end_id=tokenizer.end_id)

    def start(self) -> "SglangServer":
        """Start the server and wait until it is ready."""
        variables = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        with (self._directory / "sglang.log").open("ab") as output:
            self._process = subprocess.Popen(
                self._arguments(),
                env={**os.environ, **variables},
                cwd=self._directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it is killed with its scheduler and detokenizer
            )
        try:
            eventually(self._is_up, timeout=_START_SECONDS, interval=1.0)
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """Kill the server and its processes."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{LOOPBACK}:{self._port}"

    def says(self, prompt: TokenIds) -> list[int]:
        """The whole answer, without the end token; round once where there is none."""
        first = int(prompt.sum()) % _NUM_OPENINGS
        said = self._text[first:]
        return said + self._text[:first] if self._endless in prompt else said

    def model(self) -> ServedModel:
        """Read what it serves, as a worker does."""
        return self.client.served()

    def gauges(self) -> dict[str, float]:
        """Its load, in the names of the local engine."""
        found = self.client.gauges()
        assert found is not None
        return {
            "active": found.num_inside,
            "used": found.used_blocks,
            "generation_requests": found.active_requests,
        }

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "sglang.log").read_text()[-4000:]
        return self.client.is_ready()

    def _arguments(self) -> list[str]:
        options = {
            "--model-path": self._model_dir,
            "--served-model-name": "served",
            "--device": "cpu",
            "--host": LOOPBACK,
            "--port": self._port,
            "--page-size": 16,
        }
        named = [str(each) for pair in options.items() for each in pair]
        flags = ["--enable-metrics", "--skip-server-warmup", *self._options]
        return [
            str(PYTHON.absolute()),
            str(_SERVER.absolute()),
            json.dumps(self._conduct),
            *named,
            *flags,
        ]


def _model(directory: Path, tokenizer: Tokenizer) -> Path:
    """Write the files of a model that has no weights."""
    directory.mkdir(exist_ok=True)
    for each in tokenizer_directory(None).iterdir():
        (directory / each.name).write_bytes(each.read_bytes())
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.num_tokens,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.end_id,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory
