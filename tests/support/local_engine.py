"""The local engine for tests: a running server, one stream of it, and its modules loaded by path."""

import importlib
import queue
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import tritonclient.grpc as grpcclient

import server_logs
from cli.stack.ports import LOOPBACK, free_port
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.transformers_options import TransformersOptions
from cli.stack.servers.triton_server import TritonLaunch, is_ready, prepare
from support import PATIENCE, eventually

END_OF_TURN = 128009  # <|eot_id|> of Llama 3
_MODEL = "tensorrt_llm"
_MODULES = Path(__file__).resolve().parents[2] / "triton" / "local" / _MODEL / "1"
_TYPES = {"INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64, "BOOL": np.bool_}
_COUNTS = ("kv_cache_alloc_total_blocks", "kv_cache_alloc_new_blocks", "kv_cache_reused_blocks")
_ENDED_ITSELF = "boost::interprocess::lock_exception"
_INPUTS = {
    "streaming": "BOOL",
    "stop": "BOOL",
    "end_id": "INT32",
    "beam_width": "INT32",
    "random_seed": "UINT64",
    "return_log_probs": "BOOL",
    "return_perf_metrics": "BOOL",
    "temperature": "FP32",
    "runtime_top_p": "FP32",
    "repetition_penalty": "FP32",
}


def engine_module(name: str) -> ModuleType:
    """A module of the local engine, as Triton loads it: from its folder, inside a package of its own."""
    package = "local_engine_modules"
    if package not in sys.modules:
        made = ModuleType(package)
        made.__path__ = [str(_MODULES)]
        sys.modules[package] = made
    return importlib.import_module(f"{package}.{name}")


@dataclass
class Answer:
    """All that came on one stream.

    Attributes:
        responses: the token ids of each response.
        is_final: whether the last one was marked final.
        error: the error that ended it.
        counts: of KV blocks, if the final response has them.
    """

    responses: list[list[int]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    is_final: bool = False
    error: str | None = None

    @property
    def ids(self) -> list[int]:
        return [token for response in self.responses for token in response]


class EngineStream:
    """One request on a connection of its own."""

    def __init__(self, port: int) -> None:
        options = grpcclient.KeepAliveOptions(keepalive_time_ms=10_000, keepalive_timeout_ms=5_000)
        self._client = grpcclient.InferenceServerClient(f"{LOOPBACK}:{port}", keepalive_options=options)
        self._arrived: queue.Queue[tuple[grpcclient.InferResult | None, Exception | None]] = queue.Queue()
        self.answer = Answer()
        self._client.start_stream(lambda result, error: self._arrived.put((result, error)))

    def send(self, inputs: list[grpcclient.InferInput], request_id: str) -> None:
        self._client.async_stream_infer(
            _MODEL, inputs, request_id=request_id, enable_empty_final_response=True
        )

    def next(self, timeout: float = 60) -> list[int] | None:
        """The ids of the next response; None when it was an error."""
        result, error = self._arrived.get(timeout=timeout)
        if error is not None or result is None:
            self.answer.error = str(error)
            return None
        response = result.get_response()
        self.answer.is_final = response.parameters["triton_final_response"].bool_param
        ids = result.as_numpy("output_ids")
        assert ids is None or ids.shape[:2] == (1, 1)
        assert ids is None or result.as_numpy("sequence_length").tolist() == [[ids.size]]
        counts = {name: result.as_numpy(name) for name in _COUNTS}
        self.answer.counts = {name: each.item() for name, each in counts.items() if each is not None}
        self.answer.responses.append([] if ids is None else ids.ravel().tolist())
        return self.answer.responses[-1]

    def read(self, timeout: float = 60) -> Answer:
        """All that came, once the server has ended the stream.

        Read to that end, also past an error, as the worker does: Triton 2.51 may never release a request
        whose stream is cut while its final response is on its way, and then cannot unload the model.
        """
        while not self.answer.is_final and self.answer.error is None:
            self.next(timeout)
        self._client.stop_stream()
        self._client.close()
        return self.answer

    def close(self) -> None:
        """The stream is gone; a request that was running is cancelled."""
        self._client.stop_stream(cancel_requests=True)
        self._client.close()


@dataclass
class RunningEngine:
    """A server that runs, and ways to ask it."""

    launch: TritonLaunch
    process: "subprocess.Popen[bytes]"
    log: Path

    @classmethod
    def started(cls, launch: TritonLaunch) -> "RunningEngine":
        """Start the server, which is not ready yet."""
        log = launch.cwd / "triton.log"
        return cls(launch, _started(launch, log), log)

    def wait_ready(self) -> None:
        """Wait until the server and its gauges are ready; fail as soon as it has exited.

        Triton 2.51 sometimes ends itself while it loads several Python models on busy cores. `longbatch up`
        starts it again then, and so does this, twice at most.
        """
        for _ in range(2):
            try:
                eventually(self._is_ready)
            except AssertionError:
                if self.process.poll() is None or _ENDED_ITSELF not in self.log.read_text():
                    raise
                self.process = _started(self.launch, self.log)
            else:
                return
        eventually(self._is_ready)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        return is_ready(self.launch.http_port, metrics_port=self.launch.metrics_port)

    def ask(
        self, ids: Sequence[int], max_tokens: int, *, request_id: str = "", **values: object
    ) -> EngineStream:
        """A stream on which this request was sent; a None value leaves a default input out."""
        inputs: dict[str, object] = {"streaming": True, "end_id": END_OF_TURN} | values
        tensors = [
            _tensor("input_ids", "INT32", [list(ids)]),
            _tensor("input_lengths", "INT32", [[len(ids)]]),
            _tensor("request_output_len", "INT32", [[max_tokens]]),
        ]
        if (words := inputs.pop("stop_words", None)) is not None:
            tensors.append(_tensor("stop_words_list", "INT32", [words]))
        tensors += [
            _tensor(name, _INPUTS.get(name, "INT32"), [[value]])
            for name, value in inputs.items()
            if value is not None
        ]
        stream = EngineStream(self.launch.grpc_port)
        stream.send(tensors, request_id)
        return stream

    def gauges(self) -> dict[str, float]:
        """The engine's gauges by type: `active`, `used`, `queued`, `max_requests`, `max_blocks`, …"""
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        url = f"http://{LOOPBACK}:{self.launch.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            text = answer.read().decode()
        found: dict[str, float] = {}
        for family, labels, value in re.findall(
            r"^(nv_trt_llm_\w+|longbatch_\w+){(.*?)} (\S+)$", text, re.MULTILINE
        ):
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            assert (pairs.pop("model"), pairs.pop("version")) == (_MODEL, "1")
            kind = pairs.popitem()[1]
            if kind == "max":
                kind = "max_blocks" if "kv_cache_block" in family else "max_requests"
            found[kind] = float(value)
        return found


def _started(launch: TritonLaunch, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        process = subprocess.Popen(
            launch.argv, env=launch.env, cwd=launch.cwd, stdout=output, stderr=subprocess.STDOUT
        )
    server_logs.register(log, process)
    return process


def _tensor(name: str, datatype: str, values: object) -> grpcclient.InferInput:
    array = np.array(values, dtype=_TYPES[datatype])
    tensor = grpcclient.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


@contextmanager
def running_engine(directory: Path, options: EngineOptions | TransformersOptions) -> Iterator[RunningEngine]:
    """An engine on free ports, stopped at the end."""
    launch = prepared_launch(directory, options)
    with running_server(launch) as engine:
        engine.wait_ready()
        yield engine


def prepared_launch(
    directory: Path, options: EngineOptions | TransformersOptions, ports: Sequence[int] = ()
) -> TritonLaunch:
    """A server on these ports, or on free ones, about to be started."""
    grpc_port, http_port, metrics_port = ports or free_ports(3)
    return prepare(
        directory, engine=options, grpc_port=grpc_port, http_port=http_port, metrics_port=metrics_port
    )


@contextmanager
def running_server(launch: TritonLaunch) -> Iterator[RunningEngine]:
    """The server runs, perhaps not ready yet; it has ended afterwards, by force if need be."""
    engine = RunningEngine.started(launch)
    try:
        yield engine
    finally:
        engine.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            engine.process.wait(timeout=PATIENCE)
        engine.process.kill()
        engine.process.wait()


class KillableEngine:
    """A local engine that comes back on the same ports."""

    def __init__(self, directory: Path, options: EngineOptions | TransformersOptions) -> None:
        self._prepare = partial(prepared_launch, directory, options, free_ports(3))
        self._running: RunningEngine | None = None

    def start(self) -> RunningEngine:
        self._running = RunningEngine.started(self._prepare())
        self._running.wait_ready()
        return self._running

    @property
    def engine(self) -> RunningEngine:
        assert self._running is not None
        return self._running

    def kill(self) -> None:
        if self._running is not None:
            self._running.process.kill()
            self._running.process.wait()
            self._running = None


@contextmanager
def killable_engine(directory: Path, options: EngineOptions) -> Iterator[KillableEngine]:
    """An engine that runs, until it is killed."""
    server = KillableEngine(directory, options)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, all different."""
    return [free_port() for _ in range(count)]
