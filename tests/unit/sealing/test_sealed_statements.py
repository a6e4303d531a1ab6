"""No statement in SQL writes content past the types of its columns."""

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import jobs
from jobs.database.base import Base
from jobs.database.sealed_columns import Sealed
from jobs.database.statements import Statement, insert_set
from jobs.models import PromptText

# Copies the output of a result as it is stored.
COPIES = {"jobs.webhooks.outbox._APPEND": {"results.output"}}
_INSERTED = re.compile(r"INSERT INTO (\w+)(?: AS \w+)?\s*\(([\w\s,]+)\)")
_UPDATED = re.compile(
    r"UPDATE (\w+)(?: AS \w+)?\s+SET (.*?)(?:\bWHERE\b|\bFROM\b|\bRETURNING\b|\Z)", re.DOTALL
)


def statements() -> Iterator[tuple[str, Statement]]:
    """Every statement of a module, with its name."""
    for each in pkgutil.walk_packages(jobs.__path__, "jobs."):
        for name, value in vars(importlib.import_module(each.name)).items():
            if isinstance(value, Statement):
                yield f"{each.name}.{name}", value


def places_written(sql: str) -> set[str]:
    """The places of content of the columns that a statement writes."""
    written = [(table, columns.split(",")) for table, columns in _INSERTED.findall(sql)]
    written += [(table, re.findall(r"(\w+)\s*=", columns)) for table, columns in _UPDATED.findall(sql)]
    found = set()
    for table, columns in written:
        if table in Base.metadata.tables:
            types = Base.metadata.tables[table].c
            kinds = [types[name].type for each in columns if (name := each.strip()) in types]
            found |= {kind.place for kind in kinds if isinstance(kind, Sealed)}
    return found


def test_every_statement_seals_the_content_that_it_writes() -> None:
    found = dict(statements())
    assert len(found) > 30
    writers = {name: places for name, each in found.items() if (places := places_written(each.sql))}
    assert len(writers) >= 4, "those that store results, checkpoints and ids of prompts, and copy outputs"
    for name, places in writers.items():
        sealed = {kind.place for kind in found[name].sealed.values()} | COPIES.get(name, set())
        assert places <= sealed, name


def test_every_sealed_parameter_is_one_of_the_statement() -> None:
    for name, each in statements():
        assert set(each.sealed) <= set(re.findall(r"%\((\w+)\)s", each.sql)), name


def test_rows_inserted_in_sets_are_sealed_by_their_columns() -> None:
    made = insert_set(PromptText, {"id": [], "body": [], "token_ids": [], "fingerprint": []}).statement
    assert {name: kind.place for name, kind in made.sealed.items()} == {
        "body": "texts.body",
        "token_ids": "texts.token_ids",
    }


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO results (job_id, output) SELECT 1, 'x'",
        "UPDATE results SET output = given.output FROM given",
        "WITH a AS (UPDATE checkpoints SET num_tokens = 1, output = 'x' WHERE true) SELECT 1",
    ],
)
def test_a_statement_that_writes_content_is_recognised(sql: str) -> None:
    assert places_written(sql) == {"results.output"}
