"""The release that runs."""

import os
from importlib import metadata


def version() -> str:
    """Read the installed package's version, or that of the image, into which nothing is installed.

    Returns:
        `0+source` if the code runs without either.
    """
    try:
        return metadata.version("longbatch-server")
    except metadata.PackageNotFoundError:
        return os.environ.get("LONGBATCH_VERSION") or "0+source"
