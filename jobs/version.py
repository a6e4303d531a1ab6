"""Which release this is."""

from importlib import metadata


def version() -> str:
    """The installed package's version; `0+source` where the code runs without being installed."""
    try:
        return metadata.version("longbatch")
    except metadata.PackageNotFoundError:
        return "0+source"
