"""The versions of what is installed."""

from importlib import metadata

from longbatch.version import version


def versions() -> str:
    """Return the client's version, and the server's if it is installed: `longbatch 0.3.0, server 0.3.0`."""
    try:
        return f"longbatch {version()}, server {metadata.version('longbatch-server')}"
    except metadata.PackageNotFoundError:
        return f"longbatch {version()}"
