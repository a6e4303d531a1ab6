"""Schemas of extractions: pydantic models, types by name, or JSON Schema itself."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

    M = TypeVar("M", bound=BaseModel)

Schema = Mapping[str, Any]


def is_model(schema: object) -> bool:
    """Return True for a pydantic model."""
    return isinstance(schema, type) and hasattr(schema, "model_json_schema")


def json_schema(schema: "type[BaseModel] | Schema") -> dict[str, Any]:
    """Return the JSON Schema of a model, of types by name such as `{"total": float}`, or the one given.

    Raises:
        TypeError: it is none of these.
    """
    if is_model(schema):
        found: dict[str, Any] = schema.model_json_schema()  # type: ignore[union-attr]  # checked above
        return found
    if not isinstance(schema, Mapping) or not schema:
        raise TypeError(
            "schema must be a pydantic model, a dict of types such as {'total': float}, or JSON Schema."
        )
    if isinstance(schema.get("properties"), Mapping):
        return dict(schema)
    return _model_of(schema).model_json_schema()


def reader_of(schema: "type[BaseModel] | Schema") -> Callable[[Mapping[str, Any]], Any]:
    """Return what turns found values into an instance of the model, or into a dict.

    The reader raises ValueError where the model's own validators refuse what its JSON Schema allows.
    """
    if is_model(schema):
        return lambda values: schema.model_validate_json(json.dumps(values))  # type: ignore[union-attr]  # checked above
    return dict


def _model_of(types: Schema) -> "type[BaseModel]":
    """Make a model of types by name; every field may be absent from a document.

    Raises:
        TypeError: a value is not a type.
    """
    from pydantic import Field, create_model

    fields: dict[str, Any] = {}
    for place, (name, kind) in enumerate(types.items()):
        if isinstance(kind, str) or not (isinstance(kind, type) or hasattr(kind, "__origin__")):
            raise TypeError(f"the type of {name!r} must be a type such as float (got {kind!r}).")
        # Under a name of its own: pydantic has methods called `schema` and `copy`.
        fields[f"field_{place}"] = (kind | None, Field(..., alias=name, title=name))
    return create_model("Fields", **fields)
