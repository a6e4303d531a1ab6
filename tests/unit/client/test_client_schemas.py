"""Schemas of extractions: models, types by field, JSON Schema."""

import json
import warnings
from datetime import date

import pytest
from pydantic import BaseModel, ConfigDict, Field

from jobs.prompts.confined.compiling import schema_fault
from longbatch.schemas import json_schema, reader_of


class Party(BaseModel):
    name: str


class Invoice(BaseModel):
    supplier: Party
    total: float = Field(gt=0)


@pytest.mark.parametrize("schema", [Invoice, {"supplier": str, "total": float}, Invoice.model_json_schema()])
def test_every_form_is_a_schema_that_the_server_takes(schema: object) -> None:
    written = json_schema(schema)  # type: ignore[arg-type]  # of any form
    assert [*written["properties"]] == ["supplier", "total"]
    assert schema_fault([json.dumps(written)]) is None


def test_a_field_given_by_its_type_may_be_absent_from_a_document() -> None:
    assert {"type": "null"} in json_schema({"total": float})["properties"]["total"]["anyOf"]


def test_values_become_an_instance_of_the_model() -> None:
    found = reader_of(Invoice)({"supplier": {"name": "Acme"}, "total": 3})
    assert found == Invoice(supplier=Party(name="Acme"), total=3.0)
    assert reader_of({"total": float})({"total": 3}) == {"total": 3}


@pytest.mark.parametrize("schema", [{}, [], "total", int])
def test_anything_else_is_refused_with_what_is_expected(schema: object) -> None:
    with pytest.raises(TypeError, match="pydantic model"):
        json_schema(schema)  # type: ignore[arg-type]  # wrong on purpose


def test_fields_may_have_the_names_of_pydantic_s_own_methods() -> None:
    names = ["schema", "copy", "model_config", "_id", "json"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [*json_schema(dict.fromkeys(names, str))["properties"]] == names


def test_a_type_that_is_a_word_is_refused_by_its_field() -> None:
    with pytest.raises(TypeError, match="'total' must be a type"):
        json_schema({"total": "number"})


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date


def test_strict_models_read_what_json_can_hold() -> None:
    assert reader_of(Strict)({"day": "2026-11-27"}) == Strict(day=date(2026, 11, 27))
