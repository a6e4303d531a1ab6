"""Every column says what it means."""

import inspect
import re

import pytest
from sqlalchemy.orm import Mapper

from jobs.models import Base

MAPPERS = sorted(Base.registry.mappers, key=lambda mapper: mapper.class_.__name__)
ENTRY = re.compile(r"^    (\w+(?:, \w+)*): \S", re.MULTILINE)


def documented(table: type) -> list[str]:
    """List the names under Attributes of the table and of the classes that it takes columns from."""
    parts = [each for each in table.__mro__ if each is table or each.__module__.startswith("jobs.models")]
    listed = [inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")[2] for each in parts]
    return [name for names in ENTRY.findall("\n".join(listed)) for name in names.split(", ")]


def test_every_table_is_looked_at() -> None:
    assert len(MAPPERS) == len(Base.metadata.tables)


@pytest.mark.parametrize("mapper", MAPPERS, ids=lambda mapper: mapper.class_.__name__)
def test_the_docstring_of_a_table_names_every_column_once(mapper: Mapper[Base]) -> None:
    columns = [column.key for column in mapper.column_attrs]
    assert sorted(documented(mapper.class_)) == sorted(columns)
