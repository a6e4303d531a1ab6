"""Which store keeps the bytes of files: chosen by the settings, made once."""

import functools
from pathlib import Path

from jobs.settings import FileSettings
from jobs.storage import DirectoryStore, PartStore, RowStore


def make_store(settings: FileSettings) -> PartStore:
    """The store that is configured."""
    return _make_store(settings.directory, settings.url)


@functools.cache
def _make_store(directory: str | None, url: str | None) -> PartStore:
    if url is not None:
        from jobs.object_storage import ObjectStore

        return ObjectStore(url)
    return DirectoryStore(Path(directory)) if directory is not None else RowStore()
