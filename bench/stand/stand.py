"""The test stand: real servers and the product's processes, a gate for its worker, and meters."""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, Self

import httpx2

from bench import cpu
from bench.figures import until
from bench.simulation.engine_model import EngineModel, model_of
from bench.stand.documents import Author, Prompt
from bench.stand.ledger import Ledger
from cli.stack import programs
from cli.stack.api_address import ApiAddress
from cli.stack.options import StackOptions
from cli.stack.private_files import SIGNING_VARIABLE
from cli.stack.ready import INFERENCE_WORKER, PARTS, TRITON
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.transformers_options import TransformersOptions
from cli.stack.stack import Stack
from cli.stack.supervised import DEFAULT_BACKOFF, SupervisedServer
from jobs.prompts.tokenizer import Tokenizer
from jobs.prompts.tokenizer_files import tokenizer_directory

_TRACE = "LOCAL_ENGINE_TRACE"  # triton/local/tensorrt_llm/1/trace.py
_SLOTS, _POOL_TOKENS = 4, 131_072  # of the modelled A6000


class Stand:
    """Postgres, Valkey, Triton with an engine, the API and a service worker; inference workers on demand."""

    def __init__(
        self,
        directory: Path,
        *,
        time_scale: float = 1,
        environment: Mapping[str, str] | None = None,
        engine: TransformersOptions | None = None,
        max_batch_size: int = _SLOTS,
        shares_blocks: bool = False,
    ) -> None:
        """Choose the servers' directories without starting anything.

        Args:
            directory: for all data.
            time_scale: how much faster than an A6000 the local engine runs.
            environment: settings of the product that differ from its defaults.
            engine: replaces the local one.
            max_batch_size: slots of the local engine; its pool grows with them.
            shares_blocks: requests reuse the KV blocks of earlier ones, and what running ones share needs no
                room. Otherwise each reads its whole prompt.
        """
        self.directory = directory
        self.time_scale = time_scale
        self.keeps_jobs = False
        self.shares_blocks = shares_blocks
        self.texts = count()
        self.trace = directory / "engine-trace.jsonl"
        path = tokenizer_directory((environment or {}).get("LONGBATCH_TOKENIZER__PATH"))
        self.options = EngineOptions(
            mode="synthetic",
            tokenizer_dir=path,
            time_scale=time_scale,
            max_batch_size=max_batch_size,
            kv_cache_tokens=_POOL_TOKENS * max_batch_size // _SLOTS,
            kv_cache_reuse=shares_blocks,
            credits_reuse=shares_blocks,
        )
        self.author = Author(Tokenizer.load(str(path)))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LONGBATCH_")}
        self._environment = {**inherited, **(environment or {})}
        self.stack = Stack(
            StackOptions(
                directory=directory / "stack",
                engine=engine or self.options,
                api_port=0,
                parts=frozenset(PARTS) - {INFERENCE_WORKER},
                environment=self._environment,
            )
        )

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.trace.touch()
        os.environ[_TRACE] = str(self.trace)
        self.stack.start()
        self.ledger = Ledger(self.url("database_url"))
        self.http = httpx2.Client(
            base_url=self.url("api_url"),
            headers={"Authorization": f"Bearer {self.url('api_key')}"},
            timeout=600,
            trust_env=False,
        )
        return self

    def __exit__(self, *_error: object) -> None:
        self.http.close()
        self.ledger.close()
        self.stack.stop()
        self.stack.remove_data()
        os.environ.pop(_TRACE, None)

    def url(self, name: str) -> str:
        """Return the URL of a service, as `Urls` names it."""
        return str(getattr(self.stack.urls, name))

    @property
    def model(self) -> EngineModel:
        """Constants of the engine at its time scale, in seconds of the wall clock."""
        return model_of(self.options, self.options.gpu, time_scale=self.time_scale)

    @contextmanager
    def worker(self, environment: Mapping[str, str] | None = None) -> Iterator["Worker"]:
        """Run an inference worker for the block, once it has found its engine."""
        urls = self.stack.urls
        env = programs.environment(
            {**self._environment, SIGNING_VARIABLE: self.stack.webhook_secret, **(environment or {})},
            urls,
            api=ApiAddress(int(self.url("api_url").rsplit(":", 1)[1])),
            time_scale=self.time_scale,
        )
        program = programs.program(INFERENCE_WORKER, env, api=ApiAddress(0), directory=self.directory)
        log = self.directory / "inference-worker.log"
        running = SupervisedServer(program, log, report=lambda _event: None, backoff=DEFAULT_BACKOFF)
        self.ledger.database.execute("UPDATE engines SET paused_reason = 'not seen yet'")
        running.start()
        try:
            running.wait_ready(timedelta(seconds=60))
            until(lambda: self.ledger.count("engines", "paused_reason IS NULL"), seconds=60)
            time.sleep(1.0)  # meanwhile its consumer connects to the broker
            yield Worker(running)
        finally:
            running.send(signal.SIGCONT)
            running.stop()

    def submit(self, prompts: Sequence[Prompt]) -> list[str]:
        """Submit jobs, wait until all are counted and queued, and return their ids.

        Raises:
            ValueError: a line was refused.
        """
        lines = (f"{job_line(each, **self.fields(each))}\n".encode() for each in prompts)
        answer = self.http.post("/v1/jobs/bulk", content=lines).raise_for_status().json()
        if answer["rejected"]:
            raise ValueError(f"refused: {answer['errors'][:3]}")
        until(lambda: not self.ledger.count("jobs", "state = 'preparing'"), seconds=600)
        ids: list[str] = answer["ids"]
        return ids

    def fields(self, _prompt: Prompt) -> dict[str, object]:
        """Return further fields of a job besides its prompt and its limit."""
        return {}

    def post(self, body: str) -> str:
        """Submit a single job, and return its id."""
        answer = self.http.post(
            "/v1/jobs", content=body.encode(), headers={"Content-Type": "application/json"}
        )
        job_id: str = answer.raise_for_status().json()["id"]
        return job_id

    def engine_cpu_s(self) -> float:
        """Add up the CPU seconds of the process that runs the model, not of the server."""
        return cpu.of_descendants(self.stack.pids[TRITON] or 0)


class Worker:
    """An inference worker that can be frozen."""

    def __init__(self, running: SupervisedServer) -> None:
        self._running = running

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._running.pid or 0

    def freeze(self) -> None:
        """Stop the process until `thaw`, as if the machine had stopped it."""
        self._running.send(signal.SIGSTOP)

    def thaw(self) -> float:
        """Resume the process, and return the monotonic time."""
        now = time.monotonic()
        self._running.send(signal.SIGCONT)
        return now


def job_line(prompt: Prompt, **fields: object) -> str:
    """Build the job's request body, which is also a line of a bulk request."""
    asked: dict[str, Any] = {"input": prompt.text, "max_tokens": prompt.spec.max_tokens, **fields}
    return json.dumps(asked)
