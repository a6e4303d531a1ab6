"""The client of Longbatch, the job queue for batch long-context LLM inference.

>>> from longbatch import Client
>>> for doc in Client().summarize("reports/"):
...     print(doc.path, doc.summary, doc.warnings)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longbatch.aclient import AsyncClient, AsyncJob
    from longbatch.client import Client, Job
    from longbatch.errors import (
        ApiError,
        FileChangedError,
        InvalidKeyError,
        InvalidSecretError,
        InvalidUrlError,
        LongbatchError,
        NotCompletedError,
        SecretMissingError,
        ServerUnreachableError,
        SignatureError,
        StoppedError,
        WaitTimeoutError,
    )
    from longbatch.objects import Answer, DocumentSummary, Event, Extraction, Failure, Run
    from longbatch.runs import NoDocumentsError

    __version__: str

__all__ = [
    "Answer",
    "ApiError",
    "AsyncClient",
    "AsyncJob",
    "Client",
    "DocumentSummary",
    "Event",
    "Extraction",
    "Failure",
    "FileChangedError",
    "InvalidKeyError",
    "InvalidSecretError",
    "InvalidUrlError",
    "Job",
    "LongbatchError",
    "NoDocumentsError",
    "NotCompletedError",
    "Run",
    "SecretMissingError",
    "ServerUnreachableError",
    "SignatureError",
    "StoppedError",
    "WaitTimeoutError",
]

_ERRORS = [name for name in __all__ if name.endswith("Error") and name != "NoDocumentsError"]
# Names are loaded on first use: the server imports single modules of this package and needs no client.
_MODULES = {
    **dict.fromkeys(("AsyncClient", "AsyncJob"), "aclient"),
    **dict.fromkeys(("Client", "Job"), "client"),
    **dict.fromkeys(("Answer", "DocumentSummary", "Event", "Extraction", "Failure", "Run"), "objects"),
    **dict.fromkeys(_ERRORS, "errors"),
    "NoDocumentsError": "runs",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # of whatever module
    if name == "__version__":
        from longbatch.version import version

        return version()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
