"""What a local stack is to consist of."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cli.stack.ready import PARTS
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.transformers_options import TransformersOptions


def default_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where a user's stack keeps its data unless told otherwise."""
    base = environment.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "longbatch"


def _environment() -> dict[str, str]:
    return dict(os.environ)


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """A stack in one data directory.

    Attributes:
        directory: data, logs and the lock; made when missing.
        engine: what Triton runs; None: the local engine, extractive at its natural speed, with the configured
            tokenizer.
        api_port: exactly this port, or None: 8080, and a random one when that is taken.
        ready_file: written when the stack answers and whenever a process id changes; None: `ready.json` in
            the data directory.
        parts: the processes to run, of `ready.PARTS`. A server with a URL in the environment is not run.
        environment: of the processes of our own; LONGBATCH_DATABASE__URL, LONGBATCH_BROKER__URL and
            LONGBATCH_TRITON__URL in it name servers that are used in place of embedded ones.
    """

    directory: Path
    engine: EngineOptions | TransformersOptions | None = None
    api_port: int | None = None
    ready_file: Path | None = None
    parts: frozenset[str] = frozenset(PARTS)
    environment: Mapping[str, str] = field(default_factory=_environment, repr=False)

    def __post_init__(self) -> None:
        if unknown := self.parts.difference(PARTS):
            raise ValueError(f"unknown parts: {', '.join(sorted(unknown))}")
