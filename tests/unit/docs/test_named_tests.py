"""The tests and alerts that pages name as their proof exist."""

import ast
import re
from pathlib import Path

import pytest

from scripts.docs.build import ROOT

PAGES = ("SECURITY.md", "SUPPORT.md", "docs/availability.md")
NAMED = re.compile(r"`(tests/[\w/.]+?)(?:::(\w+))?`")
ALERT = re.compile(r"`(Longbatch[A-Z]\w+)`")


def functions_of(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def missing(text: str) -> list[str]:
    """What the text names as a test, and is none."""
    found = []
    for path, name in NAMED.findall(text):
        file = ROOT / path
        if file.is_dir() and not name and list(file.rglob("test_*.py")):
            continue
        if not file.is_file() or (name and name not in functions_of(file)):
            found.append(f"{path}::{name}")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert NAMED.search(text)
    assert missing(text) == []


def test_a_test_that_is_gone_is_found() -> None:
    gone = "`tests/gone.py` `tests/unit/test_layout.py::test_gone` `tests/unit/test_layout.py` `tests/golden`"
    assert missing(gone) == ["tests/gone.py::", "tests/unit/test_layout.py::test_gone", "tests/golden::"]


@pytest.mark.parametrize("page", PAGES)
def test_every_alert_that_a_page_names_is_a_rule(page: str) -> None:
    rules = (ROOT / "monitoring" / "rules.yml").read_text(encoding="utf-8")
    alerts = set(re.findall(r"- alert: (\w+)", rules))
    assert len(alerts) > 10
    assert set(ALERT.findall((ROOT / page).read_text(encoding="utf-8"))) <= alerts
