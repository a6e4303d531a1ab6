"""docs/openapi.json is what the API describes, and takes nothing back that callers were promised."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from described.document import FILE, PROMISED, as_text, described
from described.growth import taken_back

Document = dict[str, Any]


@pytest.fixture(scope="module")
def committed() -> Document:
    found: Document = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def test_the_committed_document_is_that_of_the_code() -> None:
    text = as_text(described())
    assert FILE.read_text(encoding="utf-8") == text, "run `make openapi`, and commit docs/openapi.json"


def test_nothing_is_taken_back_that_callers_were_promised(committed: Document) -> None:
    promised = json.loads(PROMISED.read_text(encoding="utf-8"))
    assert len(promised["paths"]) > 70
    assert taken_back(promised, committed) == []


def schema(document: Document, name: str) -> Document:
    found: Document = document["components"]["schemas"][name]
    return found


def drop_a_path(new: Document) -> None:
    del new["paths"]["/v1/jobs/{job_id}/result"]


def drop_a_status(new: Document) -> None:
    del new["paths"]["/v1/jobs"]["post"]["responses"]["409"]


def drop_a_parameter(new: Document) -> None:
    operation = new["paths"]["/v1/jobs"]["get"]
    operation["parameters"] = [each for each in operation["parameters"] if each["name"] != "custom_id"]


def demand_a_parameter(new: Document) -> None:
    new["paths"]["/v1/jobs"]["get"]["parameters"].append(
        {"in": "query", "name": "since", "required": True, "schema": {"type": "string"}}
    )


def drop_a_field_of_a_request(new: Document) -> None:
    del schema(new, "JobRequest")["properties"]["seed"]


def demand_a_field(new: Document) -> None:
    schema(new, "JobRequest")["required"].append("custom_id")


def lower_a_limit(new: Document) -> None:
    schema(new, "JobRequest")["properties"]["max_tokens"]["maximum"] = 4096


def take_no_null(new: Document) -> None:
    field = schema(new, "JobRequest")["properties"]["seed"]
    field["anyOf"] = [each for each in field["anyOf"] if each.get("type") != "null"]


def narrow_a_type(new: Document) -> None:
    for each in schema(new, "JobRequest")["properties"]["temperature"]["anyOf"]:
        if each.get("type") == "number":
            each["type"] = "integer"


def drop_a_value(new: Document) -> None:
    schema(new, "JobRequest")["properties"]["task"]["enum"].remove("summarize")


def drop_a_field_of_a_reply(new: Document) -> None:
    reply = schema(new, "JobReply")
    del reply["properties"]["attempt"]
    reply["required"].remove("attempt")


def leave_out_a_field(new: Document) -> None:
    schema(new, "JobReply")["required"].remove("attempt")


def reply_with_null(new: Document) -> None:
    field = schema(new, "JobReply")["properties"]["attempt"]
    field["anyOf"] = [{"type": field.pop("type")}, {"type": "null"}]


def rename_a_method(new: Document) -> None:
    new["paths"]["/v1/jobs"]["post"]["operationId"] = "another"


@pytest.mark.parametrize(
    "take",
    [
        drop_a_path,
        drop_a_status,
        drop_a_parameter,
        demand_a_parameter,
        drop_a_field_of_a_request,
        demand_a_field,
        lower_a_limit,
        take_no_null,
        narrow_a_type,
        drop_a_value,
        drop_a_field_of_a_reply,
        leave_out_a_field,
        reply_with_null,
        rename_a_method,
    ],
)
def test_what_is_taken_back_is_named(committed: Document, take: Callable[[Document], None]) -> None:
    changed = copy.deepcopy(committed)
    take(changed)
    assert taken_back(committed, changed)


def add_a_path(new: Document) -> None:
    new["paths"]["/v1/more"] = copy.deepcopy(new["paths"]["/v1/jobs"])


def take_more(new: Document) -> None:
    fields = schema(new, "JobRequest")["properties"]
    fields["more"] = {"type": "string"}
    fields["max_tokens"]["maximum"] += 1
    fields["task"]["enum"].append("translate")


def tell_more(new: Document) -> None:
    reply = schema(new, "JobReply")
    reply["properties"]["more"] = {"type": "string"}
    reply["required"].append("more")
    reply["properties"]["state"]["enum"].append("resting")


def say_it_better(new: Document) -> None:
    new["paths"]["/v1/jobs"]["post"]["summary"] = "Hand in a job"


@pytest.mark.parametrize("add", [add_a_path, take_more, tell_more, say_it_better])
def test_what_only_grows_takes_nothing_back(committed: Document, add: Callable[[Document], None]) -> None:
    changed = copy.deepcopy(committed)
    add(changed)
    assert taken_back(committed, changed) == []
