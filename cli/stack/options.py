"""The options of a local stack."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cli.stack.api_address import TlsFiles
from cli.stack.errors import StackError
from cli.stack.ports import LOOPBACK
from cli.stack.ready import PARTS
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.llama_options import LlamaOptions
from cli.stack.servers.transformers_options import TransformersOptions
from jobs.loopback import is_loopback
from longbatch.server import data_directory

# Each names an engine to use instead of the stack's own.
ENGINE_URLS = ("LONGBATCH_ENGINE__URL", "LONGBATCH_TRITON__URL")


def default_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the default data directory of a user's stack.

    Raises:
        StackError: this user has no home directory.
    """
    try:
        return data_directory(environment)
    except RuntimeError as error:
        raise StackError("This user has no home directory: choose a directory with --data-dir.") from error


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """The options of a stack in one data directory.

    Attributes:
        directory: holds data, logs and the lock; created if missing.
        engine: the engine that Triton runs, or a model for llama.cpp, which then takes Triton's place; None
            for the local engine, extractive at its natural speed, with the configured tokenizer.
        api_port: exactly this port; 0 for a random one; None for 8080, or a random one if that is taken.
        api_host: the address that the API listens on; any but loopback needs `tls`.
        tls: the API's certificate; None for plain HTTP.
        ready_file: written when the stack answers and whenever a process id changes; None for `ready.json` in
            the data directory.
        parts: the processes to run, from `ready.PARTS`. A server with a URL in the environment does not run.
        engines: variables for each inference worker, whose engine runs already; empty: one worker, whose
            engine is the one above or that of the environment.
        environment: of our own processes; LONGBATCH_DATABASE__URL, LONGBATCH_BROKER__URL, and
            ENGINE_URLS in it name servers to use instead of embedded ones.

    Raises:
        ValueError: a part is unknown.
        StackError: the environment names an engine to use instead of the model for llama.cpp, or other
            machines could read what the API is sent.
    """

    directory: Path
    engine: EngineOptions | TransformersOptions | LlamaOptions | None = None
    api_port: int | None = None
    api_host: str = LOOPBACK
    tls: TlsFiles | None = None
    ready_file: Path | None = None
    parts: frozenset[str] = frozenset(PARTS)
    engines: tuple[Mapping[str, str], ...] = field(default=(), repr=False)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)

    def __post_init__(self) -> None:
        if unknown := self.parts.difference(PARTS):
            raise ValueError(f"unknown parts: {', '.join(sorted(unknown))}")
        if self.tls is None and not is_loopback(self.api_host):
            raise StackError(
                f"--host {self.api_host} opens the API to the network, so it needs --tls-certificate FILE and"
                " --tls-key FILE; or put a proxy in front and leave --host out."
            )
        given = [name for name in ENGINE_URLS if self.environment.get(name)]
        if given and isinstance(self.engine, LlamaOptions):
            raise StackError(f"--engine llama starts an engine of its own: unset {' and '.join(given)}.")
