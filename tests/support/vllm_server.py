"""A real vLLM on the CPU: its server, killed and started again on the same port."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cli.stack.ports import LOOPBACK, free_port
from jobs.prompts.tokenizer_files import tokenizer_directory
from jobs.settings import EngineSettings, TritonSettings
from scripted_model import POSITIONS
from support import eventually
from worker.engine import loop
from worker.engine.client import EngineClient
from worker.engine.engine import ServedModel
from worker.engine.exposition import scrape

PYTHON: Final = Path(".venv-vllm/bin/python")
_API_SERVER: Final = "vllm.entrypoints.openai.api_server"  # what `vllm serve` starts
_START_SECONDS: Final = 600.0  # 60 alone, on two cores


class VllmServer:
    """vLLM's OpenAI-compatible server with one model, on a port of its own.

    Attributes:
        tokens_per_block: of its KV cache.
    """

    tokens_per_block = 64

    def __init__(
        self,
        directory: Path,
        model_dir: Path,
        *,
        slots: int = 4,
        context: int = POSITIONS,
        pool_tokens: int = POSITIONS,
        caches: bool = False,
        tokenizer: Path | None = None,
        adapters: Mapping[str, Path] | None = None,
        is_plain: bool = False,
        iteration_tokens: int = 4096,
        num_engines: int = 1,
        has_weights: bool = True,
    ) -> None:
        """Set up without starting it.

        Args:
            directory: of its log.
            model_dir: of its model.
            slots: requests that run at the same time.
            context: most tokens of one request.
            pool_tokens: of all requests together.
            caches: it reuses what prompts begin with.
            tokenizer: its directory; None: the bundled one.
            adapters: that it is started with, by name.
            is_plain: it chooses its context, KV cache and everything else itself, as a user's would.
            iteration_tokens: that it reads in one iteration.
            num_engines: that share the requests, each with its own slots and pool.
            has_weights: the model's directory has them; otherwise they are random.
        """
        self._slots = slots
        self._context = context
        self._num_blocks = pool_tokens // self.tokens_per_block + 1  # one is never given to a request
        self._caches = caches
        self._tokenizer = tokenizer or tokenizer_directory(None)
        self._adapters = adapters or {}
        self._is_plain = is_plain
        self._iteration_tokens = iteration_tokens
        self._num_engines = num_engines
        self._has_weights = has_weights
        self._directory = directory
        self._model_dir = model_dir
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._client = EngineClient(TritonSettings(), self.settings, end_id=0)

    @property
    def settings(self) -> EngineSettings:
        """Those of a worker that feeds it."""
        return EngineSettings(url=self.url, max_batch_size=self._slots * self._num_engines)

    def start(self) -> "VllmServer":
        """Start the server and wait until it is ready."""
        variables = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
        }
        with (self._directory / "vllm.log").open("ab") as output:
            self._process = subprocess.Popen(
                self._arguments(),
                env={**os.environ, **variables},
                cwd=self._directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it is killed with its engine's processes
            )
        try:
            eventually(self._is_up, timeout=_START_SECONDS, interval=1.0)  # each look takes the CPU from it
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """Kill the server and its engine's processes."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{LOOPBACK}:{self._port}"

    def log(self) -> str:
        """What it has written so far."""
        return (self._directory / "vllm.log").read_text()

    def total(self, series: str) -> int:
        """Read a counter of its metrics, which began at 0 with its process."""
        samples = loop.run(scrape(f"{self.url}/metrics", series))
        assert samples
        return int(sum(each.value for each in samples))

    def model(self) -> ServedModel:
        """Read what it serves, as a worker does."""
        return self._client.served()

    def gauges(self) -> dict[str, float]:
        """Its load, in the names of the local engine."""
        found = self._client.gauges()
        assert found is not None
        return {
            "active": found.num_inside,
            "used": found.used_blocks,
            "generation_requests": found.active_requests,
        }

    def _is_up(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()[-4000:]
        return self._client.is_ready()

    def _arguments(self) -> list[str]:
        options = {
            "--model": self._model_dir,
            "--tokenizer": self._tokenizer,
            "--served-model-name": "scripted",
            "--dtype": "float32",
            "--host": LOOPBACK,
            "--port": self._port,
            "--max-model-len": self._context,
            "--max-num-seqs": self._slots,
            "--max-num-batched-tokens": self._iteration_tokens,
            "--block-size": self.tokens_per_block,
            "--num-gpu-blocks-override": self._num_blocks,
            "--data-parallel-size": self._num_engines,
            "--load-format": "auto" if self._has_weights else "dummy",
        }
        if self._is_plain:
            options = {name: options[name] for name in ("--model", "--host", "--port", "--max-num-seqs")}
        named = [str(each) for pair in options.items() for each in pair]
        if self._is_plain:
            # Compiling the model takes minutes on two cores.
            return [str(PYTHON.absolute()), "-m", _API_SERVER, *named, "--enforce-eager"]
        return [
            str(PYTHON.absolute()),
            "-m",
            _API_SERVER,
            *named,
            "--enforce-eager",
            "--enable-prompt-tokens-details",
            "--enable-prefix-caching" if self._caches else "--no-enable-prefix-caching",
            *self._adapter_arguments(),
        ]

    def _adapter_arguments(self) -> list[str]:
        if not self._adapters:
            return []
        modules = [f"{name}={path.absolute()}" for name, path in self._adapters.items()]
        return ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "2", "--lora-modules", *modules]
