"""Every promise of docs/guarantees.md has a test, every test a promise, and the suite knows no internals."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SUITE: Final = Path(__file__).resolve().parent
PAGE: Final = SUITE.parents[1] / "docs" / "guarantees.md"
PRODUCT: Final = frozenset({"jobs", "worker", "api", "cli", "migrations", "triton"})
OTHER_SUPPORT: Final = SUITE.parent / "support"
_PROMISE: Final = re.compile(r"^\| (\d+) \|", re.MULTILINE)
_TEST: Final = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SUITE.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def imports(tree: ast.Module) -> Iterator[str]:
    """Yield the first names of all modules that a module imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import hides what it imports"
            yield (node.module or "").partition(".")[0]


def test_the_suite_imports_nothing_of_the_product() -> None:
    support = {each.stem for each in OTHER_SUPPORT.iterdir()}
    found = {(path.name, name) for path, tree in modules() for name in imports(tree)}
    assert {name for _, name in found} & PRODUCT == set()
    assert {name for _, name in found} & support == set()
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    assert called & {"import_module", "__import__", "exec", "eval"} == set()


def test_sql_is_in_one_module() -> None:
    for path, tree in modules():
        if path.name not in {"sql.py", Path(__file__).name}:
            texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
            found = [
                each
                for each in texts
                if isinstance(each, str) and re.match(r"\s*(SELECT|UPDATE|INSERT|DELETE) ", each)
            ]
            assert found == [], path.name


def test_every_promise_names_its_tests_and_every_test_belongs_to_a_promise() -> None:
    page = PAGE.read_text()
    rows = [line for line in page.splitlines() if _PROMISE.match(line)]
    assert [int(_PROMISE.match(each)[1]) for each in rows] == [*range(1, len(rows) + 1)]  # type: ignore[index]
    assert len(rows) <= 25
    assert all(_TEST.search(each) for each in rows), "each names a test"
    named = set(_TEST.findall(page))
    there = {
        (path.name, node.name)
        for path, tree in modules()
        if path.name != Path(__file__).name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    assert named == there


def test_every_promise_names_code_that_exists() -> None:
    """A promise names the statement that enforces it as `file::symbol`."""
    for row in filter(_PROMISE.match, PAGE.read_text().splitlines()):
        enforced = re.findall(r"`((?:jobs|worker|api|migrations)/[\w/]+\.py)::(\w+)`", row)
        assert enforced, row[:60]
        for file, symbol in enforced:
            text = (PAGE.parents[1] / file).read_text()
            assert re.search(rf"\b{symbol}\b", text), (file, symbol)
