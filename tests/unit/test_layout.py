"""The layout of the repository: what keeps it easy to walk through."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_triton_is_no_package() -> None:
    assert list((ROOT / "triton").rglob("__init__.py")) == []


def test_no_test_is_named_after_how_it_came() -> None:
    assert list((ROOT / "tests").rglob("test_review*.py")) == []


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


def test_stand_ins_read_the_responses_of_another_model_in_one_place() -> None:
    """`inner.responses` alone: Triton 2.51 frees what it does not keep while Python runs, and crashes."""
    readers = {
        str(file.resolve().relative_to(ROOT))
        for file in (ROOT / "triton").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and "decoupled" in {each.arg for each in node.keywords}
    }
    assert readers == {"triton/local/llmapi/1/inner.py"}


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
