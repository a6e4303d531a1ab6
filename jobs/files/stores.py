"""Which store keeps the bytes of files: chosen by the settings, created once."""

import functools
from pathlib import Path

from jobs.files.storage import DirectoryStore, PartStore, RowStore
from jobs.settings import FileSettings


def make_store(settings: FileSettings) -> PartStore:
    """Return the configured store."""
    return _make_store(settings.directory, settings.url)


@functools.cache
def _make_store(directory: str | None, url: str | None) -> PartStore:
    if url is not None:
        from jobs.files.object_storage import ObjectStore

        return ObjectStore(url)
    return DirectoryStore(Path(directory)) if directory is not None else RowStore()
