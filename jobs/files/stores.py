"""Which store keeps the bytes of files: chosen by the settings, created once."""

import functools
from pathlib import Path

from pydantic import SecretStr

from jobs.files.storage import DirectoryStore, PartStore, RowStore
from jobs.sealing.content import ContentSealer
from jobs.sealing.keys import read_keys
from jobs.settings import Settings


def make_store(settings: Settings) -> PartStore:
    """Return the configured store.

    Raises:
        VaultKeyError: an encryption key is invalid.
    """
    return _make_store(settings.files.directory, settings.files.url, settings.webhooks.encryption_key)


@functools.cache
def _make_store(directory: str | None, url: str | None, keys: SecretStr | None) -> PartStore:
    sealer = ContentSealer(read_keys(keys))
    if url is not None:
        from jobs.files.object_storage import ObjectStore

        return ObjectStore(url, sealer)
    return DirectoryStore(Path(directory), sealer) if directory is not None else RowStore()
