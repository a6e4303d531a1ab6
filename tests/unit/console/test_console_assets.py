"""What the console brings from npm is what its manifest names, with its licence."""

import json
from hashlib import sha256

from api.console.assets import FOLDER
from api.console.formats import query, span

OWN = {"console.css", "console.js", "curve.js", "icon.svg", "manifest.json"}


def test_every_foreign_file_is_in_the_manifest_with_its_hash_and_licence() -> None:
    entries = json.loads((FOLDER / "manifest.json").read_text())
    for entry in entries:
        assert set(entry) == {"name", "version", "file", "origin", "sha256", "licence", "licence_file"}
        assert sha256((FOLDER / entry["file"]).read_bytes()).hexdigest() == entry["sha256"], entry["file"]
        assert (FOLDER / entry["licence_file"]).read_text().strip()
    named = {entry["file"] for entry in entries} | {entry["licence_file"] for entry in entries}
    assert {each.name for each in FOLDER.iterdir()} == named | OWN


def test_spans_are_written_by_their_largest_units() -> None:
    assert [span(each) for each in (None, 0, 0.44, 59.6, 125, 3600, 3725, 90_000, 864_000)] == [
        "\N{EN DASH}",
        "0.0 s",
        "0.4 s",
        "1 min",
        "2 min 5 s",
        "1 h",
        "1 h 2 min",
        "1 d 1 h",
        "10 d",
    ]


def test_a_query_has_what_is_given_alone() -> None:
    assert query({"state": "failed", "after": None, "lane": "", "name": "a&b"}) == "?state=failed&name=a%26b"
    assert query({}) == ""
