"""What callers' schemas may cost: each request has a budget, and a process ends where the budget fails."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from jobs.errors import InvalidRequestError
from jobs.prompts import guides
from jobs.prompts.confined.processes import ConfinedProcesses, TooCostlyError
from jobs.prompts.guides import MAX_PATTERNS, MAX_PATTERNS_BYTES

Json = dict[str, Any]
Refer = Callable[[str], Json]
LEVELS = 14  # four references on each: 268 million paths, hours of compiling
TOO_COSTLY = "too much time or memory to compile"


def check(*schemas: Json) -> None:
    guides.check(
        [(f"schema{at}", guides.json_guide(each, param=f"schema{at}")) for at, each in enumerate(schemas)]
    )


def of_patterns(num: int, pattern: str = "^[a-z]+$") -> Json:
    return {"patternProperties": {f"{pattern}{number}": {} for number in range(num)}}


def by_pointer(name: str) -> Json:
    return {"$ref": f"#/$defs/{name}"}


def by_anchor(name: str) -> Json:
    return {"$dynamicRef": f"#{name}"}


def by_uri(name: str) -> Json:
    return {"$ref": f"../a/{name}"}


def definitions(levels: int, *, refer: Refer = by_pointer, keyword: str = "allOf") -> Json:
    found: Json = {}
    for level in range(levels):
        name, references = f"d{level}", [refer(f"d{level + 1}")] * 4
        of_all = dict(zip("abcd", references, strict=True)) if keyword == "dependentSchemas" else references
        found[name] = {"$id": f"http://test/a/{name}", "$dynamicAnchor": name, keyword: of_all}
    return {**found, f"d{levels}": {"$id": f"http://test/a/d{levels}", "$dynamicAnchor": f"d{levels}"}}


@pytest.mark.parametrize("refer", [by_pointer, by_anchor, by_uri])
@pytest.mark.parametrize("keyword", ["anyOf", "dependentSchemas"])
def test_references_that_multiply_are_refused_however_they_are_written(refer: Refer, keyword: str) -> None:
    found = definitions(LEVELS, refer=refer, keyword=keyword)
    if refer is not by_uri:  # a part with a URI of its own would have to have the definitions, too
        for each in found.values():
            del each["$id"]
    schema = {"unevaluatedProperties": False, **refer("d0"), "$id": "http://test/a/root", "$defs": found}
    with pytest.raises(InvalidRequestError, match=TOO_COSTLY) as refused:
        check(schema)
    assert refused.value.param == "schema0"


def test_what_no_keyword_multiplies_is_taken() -> None:
    plain = {name: {"allOf": each.get("allOf", [])} for name, each in definitions(LEVELS).items()}
    plain[f"d{LEVELS}"] = {"type": "object"}
    check({**by_pointer("d0"), "$defs": plain})


def test_a_schema_that_extends_another_by_its_name_is_taken() -> None:
    base = {
        "$id": "./base",
        "unevaluatedProperties": False,
        "properties": {"children": {"items": {"$ref": "#"}}},
        "$dynamicRef": "#more",
        "$defs": {"none": {"$dynamicAnchor": "more"}},
    }
    more = {"$dynamicAnchor": "more", "properties": {"b": {"type": "string"}}}
    check({"$id": "http://test/own", "$ref": "./base", "$defs": {"more": more, "base": base}})


@pytest.mark.parametrize(
    ("schemas", "words"),
    [
        ([of_patterns(MAX_PATTERNS + 1)], f"more than {MAX_PATTERNS} regular expressions \\(got 101\\)"),
        ([of_patterns(60), of_patterns(60)], f"more than {MAX_PATTERNS} regular expressions \\(got 120\\)"),
        ([{"items": {"pattern": "a" * (MAX_PATTERNS_BYTES + 1)}}], f"exceed {MAX_PATTERNS_BYTES} bytes"),
        # One alone may take a MiB when it is compiled; a hundred take that much together.
        ([of_patterns(MAX_PATTERNS, r"\S{400}")], "compiled size is limited"),
        ([of_patterns(1, r"\S{400}"), of_patterns(50, r"\S{100}")], "compiled size is limited"),
    ],
)
def test_the_schemas_of_a_request_share_one_budget_of_patterns(schemas: list[Json], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        check(*schemas)


@pytest.mark.parametrize("schema", [of_patterns(MAX_PATTERNS), of_patterns(1, r"\S{400}")])
def test_a_budget_may_be_spent_on_many_patterns_or_on_large_ones(schema: Json) -> None:
    check(schema)


def test_the_schema_at_fault_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="nosuch") as refused:
        check({}, {"type": "nosuch"})
    assert refused.value.param == "schema1"


def test_patterns_too_costly_to_parse_are_refused() -> None:
    """Their compiled size would be refused too, but takes seconds to find out."""
    with pytest.raises(InvalidRequestError, match=TOO_COSTLY):
        check({"pattern": r"(?i:\pL)" * (MAX_PATTERNS_BYTES // 8)})


@pytest.mark.parametrize("spent", ["time", "memory"])
def test_a_process_that_spends_too_much_ends_alone(spent: str) -> None:
    mesh = {f"d{one}": {"anyOf": [by_pointer(f"d{other}") for other in range(12)]} for one in range(12)}
    costly: Json = {"unevaluatedItems": False, **by_pointer("d0"), "$defs": mesh}
    processes = ConfinedProcesses()
    try:
        question: Json = {"schemas": ["{}"]}
        assert processes.ask(question) is None
        if spent == "memory":
            with pytest.raises(TooCostlyError):
                processes.ask({"schemas": ["[" + "{}," * 30_000_000 + "{}]"]})
        else:
            with pytest.raises(TooCostlyError):
                processes.ask({"schemas": [guides.json_guide(costly, param="").content]})
        assert processes.ask(question) is None
    finally:
        processes.close()


def test_a_process_that_died_is_replaced() -> None:
    processes = ConfinedProcesses()
    try:
        assert processes.ask({"schemas": ["{}"]}) is None
        [process] = processes._idle
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert processes.ask({"schemas": ['{"type": "nosuch"}']}) is not None
    finally:
        processes.close()


def test_confined_processes_see_no_secrets_of_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGBATCH_SECRET", "x")
    processes = ConfinedProcesses()
    try:
        assert processes.ask({"schemas": ["{}"]}) is None
        [process] = processes._idle
        with open(f"/proc/{process.pid}/environ", "rb") as environment:  # noqa: PTH123  # no real file
            assert b"LONGBATCH" not in environment.read()
    finally:
        processes.close()


@pytest.mark.parametrize("module", ["api.app", "worker.process"])
def test_no_process_with_other_work_can_compile_a_schema(module: str) -> None:
    """The library holds the interpreter lock while it does."""
    code = f"import sys, {module}; sys.exit('jsonschema_rs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
