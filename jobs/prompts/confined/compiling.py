"""Compile callers' JSON Schemas, for confined processes alone: the library holds the interpreter lock."""

import json
from collections.abc import Sequence
from typing import Any, Final

import jsonschema_rs

from jobs.prompts.guides import count_patterns

# Of one compiled pattern, and of what matching it may keep.
_PATTERN_BYTES: Final = 1024 * 1024
# Of all compiled patterns of a request. Compiling takes 10 ms for each MiB.
_ALL_PATTERNS_BYTES: Final = 4 * _PATTERN_BYTES
_MAX_CHARS: Final = 300  # of a message, which quotes the schema
_WHICH_REGEX: Final = "look-around and back references cannot be used, and its compiled size is limited"


def validator_of(schema: dict[str, Any], *, num_patterns: int) -> Any:  # noqa: ANN401  # the library's validators share no class
    """Compile a JSON Schema. It reads nothing from elsewhere, and matches its patterns in linear time.

    Args:
        schema: JSON.
        num_patterns: among which the size of compiled patterns is divided.

    Raises:
        ValueError: it is no valid schema, or too large.
        jsonschema_rs.ReferencingError: it refers to what it does not hold.
    """
    size = min(_PATTERN_BYTES, _ALL_PATTERNS_BYTES // max(1, num_patterns))
    options = jsonschema_rs.RegexOptions(size_limit=size, dfa_size_limit=size)
    return jsonschema_rs.validator_for(schema, pattern_options=options, offline=True)


def schema_fault(contents: Sequence[str]) -> tuple[int, str] | None:
    """Compile these schemas; return the index of the first one that cannot be used, and why.

    Returns:
        None if all can be used.
    """
    schemas = [json.loads(each) for each in contents]
    num_patterns = sum(map(count_patterns, schemas))
    for index, schema in enumerate(schemas):
        try:
            validator_of(schema, num_patterns=num_patterns)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            reason = str(error).splitlines()[0][:_MAX_CHARS]
            is_pattern = isinstance(error, jsonschema_rs.ValidationError) and error.kind.name == "format"
            return index, f"{reason}: {_WHICH_REGEX}." if is_pattern else reason
    return None
