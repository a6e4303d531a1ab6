"""Both clients offer the same calls with the same options, which are those of the API."""

import inspect
import json
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from jobs import states
from jobs.states.document import DocumentKind
from jobs.states.summary import OnGap, Style
from longbatch import aclient, client, options
from longbatch.waiting import WAIT_WORDS

API = json.loads((Path(__file__).resolve().parents[3] / "docs" / "openapi.json").read_text(encoding="utf-8"))
PAIRS = [
    (client.Client, aclient.AsyncClient),
    (client.Job, aclient.AsyncJob),
    (client.Jobs, aclient.AsyncJobs),
    (client.Runs, aclient.AsyncRuns),
    (client.Documents, aclient.AsyncDocuments),
]
# For flows of other modules: the command line's own.
OF_THREADS = {"run", "run_each"}


def methods(cls: type) -> dict[str, Any]:
    return {
        name: each
        for name, each in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and name not in OF_THREADS
    }


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=lambda cls: cls.__name__)
def test_both_clients_have_the_same_methods_and_parameters(sync: type, asynchronous: type) -> None:
    ours, theirs = methods(sync), methods(asynchronous)
    assert ours.keys() == theirs.keys()
    for name, method in ours.items():
        first, second = (inspect.signature(each).parameters for each in (method, theirs[name]))
        assert [(each.name, each.kind, each.default) for each in first.values()] == [
            (each.name, each.kind, each.default) for each in second.values()
        ], name


@pytest.mark.parametrize(
    ("given", "request_name", "own"),
    [
        (options.JobOptions, "JobRequest", {"input"}),
        (options.SummaryOptions, "SummaryRequest", {"documents", "urls", "combine", "custom_id"}),
        (options.AskOptions, "AnswersRequest", {"documents", "questions", "custom_id"}),
        (options.ExtractOptions, "ExtractionRequest", {"documents", "schema", "custom_id"}),
    ],
)
def test_options_are_those_of_the_api(given: type, request_name: str, own: set[str]) -> None:
    described = set(API["components"]["schemas"][request_name]["properties"]) - own
    # What vLLM's and SGLang's callers send under another name.
    described -= {each for each in described if each.startswith("guided_")} | {"structured_fallback"}
    of_uploads = {"encoding", "attachments"} & set(get_type_hints(given))
    assert set(get_type_hints(given)) - of_uploads == described


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (options.JobState, states.JobState),
        (options.DocumentKind, DocumentKind),
        (options.Style, Style),
        (options.OnGap, OnGap),
    ],
)
def test_choices_are_those_of_the_server(names: object, values: type[StrEnum]) -> None:
    assert list(get_args(names)) == [each.value for each in values]


def test_every_reason_to_wait_has_words() -> None:
    assert WAIT_WORDS.keys() == {each.value for each in states.WaitReason}
