"""The commands by name. No module of a command is imported until it runs."""

from collections.abc import Mapping
from importlib import metadata
from typing import Final

_ENTRY_POINTS: Final = "longbatch.commands"

# Each name with its line of the help, in the order of the help.
CLIENT_COMMANDS: Final[Mapping[str, str]] = {
    "summarize": "Summarize documents of any length.",
    "ask": "Ask documents questions.",
    "extract": "Extract fields from documents.",
    "estimate": "Upload documents and estimate their summaries.",
    "watch-folder": "Summarize what arrives in a folder, until stopped.",
    "console": "Print a link that signs a browser in to the console once, and open it.",
    "submit": "Submit a text as a job and print its id, or wait and print its output.",
    "list": "List jobs, newest first.",
    "show": "Show a job's state and details, and why it is waiting.",
    "attempts": "List the runs of a job, oldest first, and how each ended.",
    "result": "Print a job's output, or the part produced so far if it did not complete.",
    "cancel": "Cancel jobs by id, or all that match every filter.",
    "watch": "Follow a job or a batch until it ends: progress, speed, and estimated time left.",
    "documents": "Manage documents and read their text.",
    "webhooks": "Manage webhook endpoints and their deliveries.",
    "audit": "List who changed what, newest first.",
}
SERVER_COMMANDS: Final[Mapping[str, str]] = {
    "demo": "Start a stack of its own, summarize documents on it and print a table.",
    "up": "Run Longbatch here: database, broker, engine, API and workers, until Ctrl-C.",
    "service": "Run `longbatch up` as a systemd service.",
    "migrate": "Upgrade a database's tables.",
    "doctor": "Check each component: API, database, broker, engine, tokenizer.",
    "tenants": "Manage tenants.",
    "keys": "Manage API keys.",
    "sessions": "Manage who is signed in to the console.",
    "content": "Manage how content is encrypted at rest.",
    "engine": "Plan, build, inspect and pause engines.",
    "adapters": "Manage adapters (LoRA).",
    "bench": "Measure a running server under load.",
}
_CLIENT_MODULES: Final[Mapping[str, str]] = {
    **{name: name.replace("-", "_") for name in CLIENT_COMMANDS},
    **dict.fromkeys(("submit", "list", "show", "attempts", "result", "cancel"), "jobs"),
}


_modules: dict[str, str] = {
    name: f"longbatch.cli.commands.{module}" for name, module in _CLIENT_MODULES.items()
}


def add_modules(modules: Mapping[str, str]) -> None:
    """Add the modules that register further commands, where nothing is installed."""
    _modules.update(modules)


def module_of(name: str) -> str | None:
    """Return the module that registers a command; None if the server, which has it, is not installed."""
    if name not in _modules:
        for entry in metadata.entry_points(group=_ENTRY_POINTS):
            add_modules(entry.load())
    return _modules.get(name)


def has_server() -> bool:
    """Return True if the server's commands are installed."""
    return len(_modules) > len(_CLIENT_MODULES) or bool(metadata.entry_points(group=_ENTRY_POINTS))
