"""Filters of lists, whatever an address says."""

import pytest

from api.console.page import redirect
from console_pages.browser import Browser

LISTS = {
    "jobs": ("tenant",),
    "batches": ("tenant",),
    "documents": ("name", "tenant"),
    "summaries": ("custom_id", "tenant"),
    "webhooks/deliveries": ("tenant",),
}


@pytest.mark.parametrize(
    ("section", "name"), [(section, name) for section in LISTS for name in LISTS[section]]
)
def test_a_character_that_no_column_holds_matches_nothing(operator: Browser, section: str, name: str) -> None:
    found = operator.client.get(f"/console/{section}", params={name: "a\0b"})
    assert found.status_code == (404 if name == "tenant" else 200), found.text
    assert "a\0" not in found.text


def test_the_message_after_a_form_fits_into_a_cookie() -> None:
    for text in ("\N{WATER WAVE}", "\x01", '"', "a"):
        cookie = redirect("/console/", done=text * 9000).headers["set-cookie"].partition(";")[0]
        assert 600 < len(cookie) <= 4096, text
