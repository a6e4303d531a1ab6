"""The layout of the repository: what keeps it easy to walk through."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("jobs", "api", "worker", "cli", "bench", "migrations", "scripts", "tests", "triton")
MAX_FILES = 24
MAX_LINES = 400
MAX_TEST_LINES = 500
# One file a release of the schema: they are read by number, and only ever grow.
UNBOUNDED = ("migrations/versions",)


def python_files() -> dict[str, int]:
    """Count the Python files of each folder; a package's `__init__.py` is not one of them."""
    found: dict[str, int] = {}
    for top in FOLDERS:
        for file in (ROOT / top).rglob("*.py"):
            folder = str(file.parent.relative_to(ROOT))
            if file.name != "__init__.py" and "node_modules" not in file.parts:
                found[folder] = found.get(folder, 0) + 1
    return found


def test_no_folder_has_more_python_files_than_a_reader_can_take_in() -> None:
    counted = python_files()
    assert {*FOLDERS} <= {folder.split("/")[0] for folder in counted}
    crowded = {
        folder: count for folder, count in counted.items() if count > MAX_FILES and folder not in UNBOUNDED
    }
    assert crowded == {}


def test_no_file_of_the_product_is_longer_than_a_reader_takes_in_at_once() -> None:
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines())
        for package in ("jobs", "api", "worker", "cli")
        for file in (ROOT / package).rglob("*.py")
    }
    assert len(lengths) > 300
    assert {file: length for file, length in lengths.items() if length > MAX_LINES} == {}


def test_no_file_of_tests_is_longer_than_a_reader_takes_in_at_once() -> None:
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines())
        for file in (ROOT / "tests").rglob("*.py")
        if "node_modules" not in file.parts
    }
    assert len(lengths) > 300
    assert {file: length for file, length in lengths.items() if length > MAX_TEST_LINES} == {}


def test_triton_is_no_package() -> None:
    assert list((ROOT / "triton").rglob("__init__.py")) == []


def test_no_test_is_named_after_how_it_came() -> None:
    assert list((ROOT / "tests").rglob("test_review*.py")) == []


def test_every_public_class_name_is_unique() -> None:
    defined: dict[str, list[str]] = defaultdict(list)
    for package in ("jobs", "api", "worker", "cli"):
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert len(defined) > 300
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}


def test_rows_of_jobs_begin_in_one_place() -> None:
    """`new_job` alone makes them, and only `fitting` and the guarded UPDATE set a state that they have."""
    makers, movers = [], []
    for package in ("jobs", "api", "worker", "cli"):
        for file in (ROOT / package).rglob("*.py"):
            place = str(file.relative_to(ROOT))
            for node in ast.walk(ast.parse(file.read_text())):
                match node:
                    case ast.Call(func=ast.Name("Job")) | ast.Call(ast.Name("insert"), [ast.Name("Job"), *_]):
                        makers.append(place)
                    case ast.Attribute(ast.Name("job"), "state", ast.Store()):
                        movers.append(place)
                    case ast.Call(ast.Attribute(attr="values"), _, keywords) if "update(Job)" in ast.unparse(
                        node
                    ) and "state" in {each.arg for each in keywords}:
                        movers.append(place)
    assert makers == ["jobs/job_rows.py"]
    assert {*movers} == {"jobs/job_rows.py", "jobs/fitting.py"}


# No verb in the imperative is one of these.
NO_VERBS = """
    a all an and another any args as at both by each either every everybody everything few for from
    her here his how if in into it its many more most much neither no nobody none not nothing of on
    one only or other others our she so some somebody something such than that the their them there
    these they this those to two under until up we what whatever when where whether which who
    whoever whom whose why with within without you your
"""
PRODUCT = ("jobs", "api", "worker", "cli", "bench", "migrations", "triton")
MAX_SHARE = 0.05


def function_docstrings() -> dict[str, str]:
    """Find the docstring of every function of the product that is no property."""
    found: dict[str, str] = {}
    for top in PRODUCT:
        for file in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
                if (text := ast.get_docstring(node)) and not is_property:
                    found[f"{file.relative_to(ROOT)}:{node.lineno}"] = text
    return found


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    docstrings = function_docstrings()
    assert len(docstrings) > 1000
    no_verbs = set(NO_VERBS.split())
    others = [
        place for place, text in docstrings.items() if text.split()[0].strip("`,.:;").lower() in no_verbs
    ]
    assert len(others) <= MAX_SHARE * len(docstrings), others
