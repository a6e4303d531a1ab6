"""The release of the installed package."""

from importlib import metadata


def version() -> str:
    """Read the installed package's version.

    Returns:
        `0+source` if the code runs without being installed.
    """
    try:
        return metadata.version("longbatch")
    except metadata.PackageNotFoundError:
        return "0+source"
