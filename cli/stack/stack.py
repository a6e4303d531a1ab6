"""The whole local stack: starts servers, then the schema, then our own processes; stops in reverse."""

import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Self

from cli.stack import programs
from cli.stack.api_address import ApiAddress
from cli.stack.errors import PortInUseError, StackError
from cli.stack.locks import DirectoryLock
from cli.stack.options import StackOptions
from cli.stack.ports import free_port, release, reserve
from cli.stack.private_files import ENCRYPTION_VARIABLE, SIGNING_VARIABLE, encryption_key, webhook_secret
from cli.stack.ready import (
    API,
    ENGINE_COMPONENT,
    INFERENCE_WORKER,
    LLAMA_CPP,
    PARTS,
    POSTGRES,
    REDIS,
    SERVICE_WORKER,
    TRITON,
    WORKERS_COMPONENT,
    Urls,
    write_ready_file,
)
from cli.stack.server import StackServer
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.llama_cpp import EmbeddedLlamaCpp
from cli.stack.servers.llama_options import LlamaModel, LlamaOptions
from cli.stack.servers.postgres import EmbeddedPostgres
from cli.stack.servers.transformers_options import TransformersOptions
from cli.stack.servers.triton import EmbeddedTriton
from cli.stack.servers.valkey import EmbeddedValkey
from cli.stack.supervised import (
    DEFAULT_BACKOFF,
    Backoff,
    Report,
    ServerEnded,
    ServerStarted,
    SupervisedServer,
)

_DEFAULT_API_PORT = 8080
_SERVER_TIMEOUT = timedelta(seconds=60)
_READY_TIMEOUT = timedelta(seconds=60)
_READY_POLL_SECONDS = 0.05
# For an engine that answers already: its worker starts, probes and registers it meanwhile.
_EXTERNAL_ENGINE_SECONDS = 15.0
_FALSE = {"0", "f", "false", "n", "no", "off"}  # as pydantic reads settings
# For processes whose own name says nothing to a newcomer.
_WORDS = {
    POSTGRES: "the database (Postgres)",
    REDIS: "the broker (Valkey)",
    TRITON: "the engine (Triton)",
    LLAMA_CPP: "the engine (llama.cpp)",
    API: "the API",
}
# Each group stops together, after the one before. Workers stop first, to release their jobs.
_STOP_ORDER = ((API, INFERENCE_WORKER, SERVICE_WORKER), (TRITON, LLAMA_CPP, REDIS), (POSTGRES,))


def _silent(_event: object) -> None:
    """Ignore the event."""


class Stack:
    """A stack in one data directory; a context manager that starts and stops it.

    Attributes:
        directory: holds data and logs.
        ready_file: exists while the stack is ready.
        urls: valid from `start` on, and unchanged when a process restarts.
    """

    def __init__(
        self,
        options: StackOptions,
        *,
        report: Report = _silent,
        progress: Callable[[str], None] = _silent,
        backoff: Backoff = DEFAULT_BACKOFF,
    ) -> None:
        """Set up without starting anything.

        Args:
            options: of the stack.
            report: receives the starts and ends of processes.
            progress: receives each step of `start` in words, once it is done.
            backoff: before a process restarts.
        """
        self.options = options
        self.urls = Urls()
        self.directory = options.directory.absolute()
        self.ready_file = (options.ready_file or options.directory / "ready.json").absolute()
        self._on_event = report
        self._progress = progress
        self._backoff = backoff
        self._lock = DirectoryLock(self.directory)
        self._running: dict[str, SupervisedServer] = {}
        self._writing = threading.Lock()
        self._is_ready = False
        self._api: ApiAddress | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start every process, wait until all answer, and write the ready file.

        On an error, stops everything that started.

        Raises:
            LongbatchError: a process did not start; the message has the end of its log.
        """
        try:
            # Other users may pass: under root, Postgres runs as another user. Private files have own modes.
            self.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
            self._lock.acquire()
            self._remove_ready_file()
            port = self._reserve_api_port()
            self._api = api = ApiAddress(port, self.options.api_host, self.options.tls)
            self._start_servers(api)
            if self.urls.database_url is not None:
                self._prepare_database(self.urls.database_url)
            self._start_programs(api)
            self._is_ready = True
            self._write_ready_file()
        except BaseException as error:
            self.stop()
            if isinstance(error, OSError):
                place, why = error.filename or self.directory, error.strerror or error
                raise StackError(f"Cannot use {place}: {why}.") from error
            raise

    def stop(self) -> None:
        """Stop every process within 10 s and remove the ready file. Safe to repeat."""
        if not self._lock.is_held:
            return  # the ready file may belong to the stack that holds the lock
        self._is_ready = False
        programs_first, *servers = _STOP_ORDER
        for names in ((*programs_first, *self._further_workers), *servers):
            group = [self._running[name] for name in names if name in self._running]
            if group:
                with ThreadPoolExecutor(len(group)) as pool:
                    list(pool.map(SupervisedServer.stop, group))
        self._running.clear()
        if self._api is not None:
            release(self._api.port)
            self._api = None
        self._remove_ready_file()
        self._lock.release()

    @property
    def pids(self) -> dict[str, int | None]:
        """Process ids by name; None for a process that this stack does not run."""
        names = dict.fromkeys([*PARTS, *self._running])
        return {name: self._running[name].pid if name in self._running else None for name in names}

    @property
    def runs_local_engine(self) -> bool:
        """True if answers come from the stand-in instead of a language model."""
        return TRITON in self._running and not isinstance(self.options.engine, TransformersOptions)

    @property
    def model(self) -> LlamaModel | None:
        """The model that llama.cpp serves; None if this stack does not run it."""
        server = self._running[LLAMA_CPP].server if LLAMA_CPP in self._running else None
        return server.model if isinstance(server, EmbeddedLlamaCpp) else None

    @property
    def webhook_secret(self) -> str:
        """The secret that signs the stack's webhooks."""
        return webhook_secret(self.options.directory, self.options.environment)

    def answers(self, name: str) -> bool:
        """Return True if the process answers now; False if this stack does not run it."""
        return name in self._running and self._running[name].server.is_ready()

    def send(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the signal to the process; if it ends, it restarts after its back-off."""
        self._running[name].send(number)

    def hold(self, name: str) -> None:
        """Stop the process until `resume`."""
        self._running[name].stop()

    def resume(self, name: str) -> None:
        """Start a held process again and wait until it answers."""
        self._running[name].start()
        self._running[name].wait_ready(_SERVER_TIMEOUT)

    def remove_data(self) -> None:
        """Delete the stopped stack's files, including the database's, wherever they are."""
        EmbeddedPostgres(self.directory / POSTGRES).remove()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _further_workers(self) -> list[str]:
        """Names of the inference workers after the first one."""
        return [programs.numbered(INFERENCE_WORKER, each + 1) for each in range(1, len(self.options.engines))]

    def _reserve_api_port(self) -> int:
        wanted, host = self.options.api_port, self.options.api_host
        if wanted == 0 or (wanted is None and not reserve(_DEFAULT_API_PORT, host)):
            return free_port(host)
        if wanted is None:
            return _DEFAULT_API_PORT
        if not reserve(wanted, host):
            raise PortInUseError(f"Port {wanted} is taken; choose another --port, or omit it for a free one.")
        return wanted

    def _start_servers(self, api: ApiAddress) -> None:
        directory, given = self.directory, self.options.environment
        database_url = given.get("LONGBATCH_DATABASE__URL")
        broker_url = given.get("LONGBATCH_BROKER__URL")
        triton_grpc = given.get("LONGBATCH_TRITON__URL")
        is_given = self.options.engines or given.get("LONGBATCH_ENGINE__URL") or triton_grpc
        postgres = EmbeddedPostgres(directory / POSTGRES) if self._runs(POSTGRES, database_url) else None
        valkey = EmbeddedValkey(directory / REDIS) if self._runs(REDIS, broker_url) else None
        llama = triton = None
        if TRITON in self.options.parts and not is_given:
            engine = self._engine()
            if isinstance(engine, LlamaOptions):
                llama = EmbeddedLlamaCpp(directory / LLAMA_CPP, LlamaModel.of(engine))
            else:
                triton = EmbeddedTriton(directory / TRITON, engine)
        self._supervise([server for server in (postgres, valkey, triton, llama) if server])
        if llama:
            llama.check_tokenizer()
        api_url = api.url if API in self.options.parts else None
        has_console = given.get("LONGBATCH_CONSOLE__ENABLED", "true").lower() not in _FALSE
        self.urls = Urls(
            api_url=api_url,
            console_url=f"{api_url}/console/" if api_url and has_console else None,
            database_url=postgres.url if postgres else database_url,
            broker_url=valkey.url if valkey else broker_url,
            triton_grpc=triton.url if triton else triton_grpc,
            triton_http=triton.http_url if triton else given.get("LONGBATCH_TRITON__HTTP_URL"),
            triton_metrics=triton.metrics_url if triton else given.get("LONGBATCH_TRITON__METRICS_URL"),
            tls_certificate=str(api.tls.certificate) if api.tls else None,
            engine_settings=(
                llama.model.settings(llama.url, llama.tokenizer)
                if llama
                else next(iter(self.options.engines), None)
            ),
        )

    def _prepare_database(self, url: str) -> None:
        """Upgrade the schema and make sure that a key exists."""
        from cli.stack.database import first_key, migrated

        with migrated(url) as engine:
            self.urls = replace(self.urls, api_key=first_key(engine, self.directory))
        self._progress("The database has the newest schema.")

    def _start_programs(self, api: ApiAddress) -> None:
        engine = self.options.engine
        time_scale = engine.time_scale if isinstance(engine, EngineOptions) and self.runs_local_engine else 1
        of_engine = self.model.defaults() if self.model is not None else {}
        env = programs.environment(
            {
                **of_engine,
                **self.options.environment,
                **(self.urls.engine_settings or {}),
                SIGNING_VARIABLE: self.webhook_secret,
                ENCRYPTION_VARIABLE: encryption_key(self.options.directory, self.options.environment),
            },
            self.urls,
            api=api,
            time_scale=time_scale,
        )
        made = [
            programs.program(name, env, api=api, directory=self.directory)
            for name in (API, INFERENCE_WORKER, SERVICE_WORKER)
            if name in self.options.parts
        ]
        if INFERENCE_WORKER in self.options.parts:
            made += [
                programs.program(
                    INFERENCE_WORKER, {**env, **engine}, api=api, directory=self.directory, number=number
                )
                for number, engine in enumerate(self.options.engines[1:], start=2)
            ]
        self._supervise(made)
        if API in self.options.parts:
            self._progress("Waiting until the engine gets jobs…")
            self._wait_until_ready(api)
        for each in made:
            self._running[each.name].check()

    def not_ready(self) -> dict[str, str]:
        """Return the components that are not ready, with details; `API` alone if it does not answer."""
        return {} if self._api is None else programs.not_ready(self._api)

    def console_link(self) -> str | None:
        """Make a link that signs a browser in to the console once; None if there is no console or no key."""
        return None if self._api is None else programs.console_link(self.urls, self._api)

    def _wait_until_ready(self, api: ApiAddress) -> None:
        """Wait until all parts of this stack are ready, for the engine only so long: jobs can wait for it.

        One that this stack does not run may load for minutes.
        """
        needed = {
            WORKERS_COMPONENT: SERVICE_WORKER in self.options.parts,
            ENGINE_COMPONENT: INFERENCE_WORKER in self.options.parts,
        }
        answers = TRITON in self._running or LLAMA_CPP in self._running or self.options.engines
        patience = _READY_TIMEOUT.total_seconds() - 1 if answers else _EXTERNAL_ENGINE_SECONDS
        began = time.monotonic()
        while True:
            found = programs.not_ready(api)
            missing = {name: detail for name, detail in found.items() if needed.get(name, True)}
            waited = time.monotonic() - began
            is_engine_alone = missing.keys() <= {ENGINE_COMPONENT}
            if not missing or (is_engine_alone and waited > patience):
                return
            if waited > _READY_TIMEOUT.total_seconds():
                listed = "; ".join(f"{name}: {detail}" for name, detail in missing.items())
                raise StackError(f"The API answers, but is not ready: {listed}")
            for name in self._running:
                self._running[name].check()
            time.sleep(_READY_POLL_SECONDS)

    def _supervise(self, servers: Sequence[StackServer]) -> None:
        """Start these servers at the same time and wait until all answer."""
        for server in servers:
            log = self.directory / "logs" / f"{server.name}.log"
            made = SupervisedServer(server, log, report=self._report, backoff=self._backoff)
            self._running[server.name] = made
            made.start()
        for server in servers:
            timeout = _SERVER_TIMEOUT
            if isinstance(server, EmbeddedTriton | EmbeddedLlamaCpp):
                timeout = server.start_timeout
            self._running[server.name].wait_ready(timeout)
            self._progress(f"Started {_WORDS.get(server.name) or server.name.replace('_', ' ')}.")

    def _runs(self, name: str, external_url: str | None) -> bool:
        return name in self.options.parts and not external_url

    def _engine(self) -> EngineOptions | TransformersOptions | LlamaOptions:
        if self.options.engine is not None:
            return self.options.engine
        from jobs.prompts.tokenizer_files import tokenizer_directory

        path = self.options.environment.get("LONGBATCH_TOKENIZER__PATH")
        return EngineOptions(tokenizer_dir=tokenizer_directory(path))

    def _report(self, event: ServerStarted | ServerEnded) -> None:
        try:
            if self._is_ready and isinstance(event, ServerStarted):
                self._write_ready_file()
        finally:
            self._on_event(event)

    def _write_ready_file(self) -> None:
        with self._writing:
            if self._is_ready:
                write_ready_file(self.ready_file, self.urls, self.pids)

    def _remove_ready_file(self) -> None:
        with self._writing, suppress(OSError):
            self.ready_file.unlink()
