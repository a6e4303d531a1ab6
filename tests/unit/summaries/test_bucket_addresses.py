"""Addresses in object storage that can be no keys are told, not thrown."""

from pathlib import Path

import pytest

from longbatch.documents import buckets
from longbatch.documents.buckets import BucketError, BucketFolder

pytest.importorskip("obstore")


@pytest.mark.parametrize("key", ["reports//june.pdf", "reports/../june.pdf", "june\x1b.pdf"])
def test_a_key_that_no_object_can_have_is_named(key: str) -> None:
    with pytest.raises(BucketError, match="cannot list s3://bucket/"):
        list(buckets.find([f"s3://bucket/{key}"]))


def test_a_result_whose_name_can_be_no_key_is_a_file_that_cannot_be_written() -> None:
    folder = BucketFolder(buckets.parse("s3://bucket/out"))
    with pytest.raises(OSError, match="parse path"):
        folder.write(Path("june\x1b.pdf.md"), "text")
