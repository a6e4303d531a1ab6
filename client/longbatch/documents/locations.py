"""Where documents lie: files and folders, or places in object storage."""

from collections.abc import Iterator, Sequence

from longbatch.documents import buckets, sources
from longbatch.documents.buckets import is_bucket
from longbatch.documents.sources import Skipped, SourceFile


def find(
    paths: Sequence[str],
    *,
    left_out: str | None = None,
    skipped: Skipped | None = None,
    follow_links: bool = False,
) -> Iterator[SourceFile]:
    """Yield every document once, in the order of the paths; in folders, by name.

    Args:
        paths: all of one kind.
        left_out: a folder to skip, because results written there must not become sources.
        skipped: takes down what folders hold besides.
        follow_links: read what links in a folder lead to outside of it; object storage has none.

    Raises:
        BucketError: the object storage does not answer or refuses.
    """
    if is_bucket(paths[0]):
        place = buckets.parse(left_out) if left_out and is_bucket(left_out) else None
        yield from buckets.find(paths, left_out=place, skipped=skipped)
    else:
        folder = sources.absolute(left_out) if left_out and not is_bucket(left_out) else None
        yield from sources.find(paths, left_out=folder, skipped=skipped, follow_links=follow_links)
