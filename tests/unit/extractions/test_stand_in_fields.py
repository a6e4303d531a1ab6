"""The local engine replies about fields in the form that our prompts ask for: both go together."""

import jsonschema_rs
import pytest

from jobs.extractions.fields import definitions, read_fields, reply_guide
from jobs.extractions.replies import Said, parse_values
from jobs.extractions.templates import ExtractionWording, extract_chunk, extract_whole
from jobs.prompts.delimiters import delimiters
from jobs.questions.quotes import QuotableText
from local_engine import engine_module

TEXT = "Lease of a flat.\n\nThe parties are Ada and Bob. The monthly rent is 900 euros.\n\nIt is furnished."
SCHEMA = {
    "type": "object",
    "properties": {
        "rent": {"type": "number", "description": "monthly"},
        "parties": {"type": "array", "items": {"$ref": "#/$defs/name"}},
        "furnished": {"type": ["boolean", "null"]},
        "notice_period": {"type": "string"},
    },
    "$defs": {"name": {"type": "string"}},
}
fields_of_engine = engine_module("fields")
documents = engine_module("documents")
MARKS = delimiters([TEXT])


@pytest.mark.parametrize("is_part", [False, True])
def test_the_stand_in_says_each_field_with_the_sentence_that_says_it(*, is_part: bool) -> None:
    fields = read_fields(SCHEMA, {})
    wording = ExtractionWording(fields, definitions(SCHEMA))
    if is_part:
        messages = extract_chunk(TEXT, wording, MARKS, number=2, num_chunks=3)
    else:
        messages = extract_whole(TEXT, wording, MARKS)
    text = fields_of_engine.reply(documents.Asked.of(messages[-1].content))
    assert text is not None
    found = parse_values(text, {*SCHEMA["properties"]})
    assert found == {
        "rent": Said(900.0, "The monthly rent is 900 euros."),
        "parties": Said(["The parties are Ada and Bob."], "The parties are Ada and Bob."),
        "furnished": Said(value=True, quote="It is furnished."),
    }
    check = jsonschema_rs.validator_for(reply_guide(SCHEMA, fields).schema)
    assert check.is_valid({name: {"quote": "", "value": None} for name in SCHEMA["properties"]})
    quotable = QuotableText(TEXT)
    assert all(quotable.find(each.quote or "") for each in found.values())


def test_other_messages_are_left_to_others() -> None:
    assert fields_of_engine.reply(documents.Asked.of(TEXT)) is None
