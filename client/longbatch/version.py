"""The version of this package."""

import os
from importlib import metadata


def version() -> str:
    """Read the installed version, or that of the image, into which nothing is installed."""
    try:
        return metadata.version("longbatch")
    except metadata.PackageNotFoundError:
        return os.environ.get("LONGBATCH_VERSION") or "0+source"
