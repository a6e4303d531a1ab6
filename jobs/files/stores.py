"""Which store keeps the bytes of files: chosen by the settings, created once."""

import functools
from pathlib import Path

from pydantic import SecretStr

from jobs.files.storage import DirectoryStore, PartStore, RowStore
from jobs.sealing.content import ContentSealer
from jobs.sealing.keys import read_keys
from jobs.settings import ContentSide, Settings


def make_store(settings: Settings | ContentSide) -> PartStore:
    """Return the configured store.

    Raises:
        VaultKeyError: an encryption key is invalid.
    """
    where = settings.files
    seals = settings.database.encrypt_content
    return _make_store(where.directory, where.url, settings.webhooks.encryption_key, seals=seals)


@functools.cache
def _make_store(directory: str | None, url: str | None, keys: SecretStr | None, *, seals: bool) -> PartStore:
    sealer = ContentSealer(read_keys(keys), seals=seals)
    if url is not None:
        from jobs.files.object_storage import ObjectStore

        return ObjectStore(url, sealer)
    return DirectoryStore(Path(directory), sealer) if directory is not None else RowStore()
