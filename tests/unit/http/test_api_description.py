import json
from html.parser import HTMLParser

import pytest
from pydantic import BaseModel, SecretStr

from api.app import create_app
from api.batches import replies as openai_replies
from api.completions import replies as ask_replies
from api.documents import schemas
from api.files import requests
from api.jobs import replies
from api.jobs.requests import CancelRequest, JobRequest
from api.responses import replies as response_replies
from api.summaries import replies as summary_replies
from api.summaries import requests as summary_schemas
from api.system import docs_page
from jobs.prompts.openai import ChatRequest, TextRequest
from jobs.responses.requests import ResponseRequest
from jobs.settings import BrokerSettings, DatabaseSettings, Settings


@pytest.fixture(scope="module")
def document() -> dict[str, object]:
    settings = Settings(
        database=DatabaseSettings(url=SecretStr("postgresql://a@b/c")),
        broker=BrokerSettings(url=SecretStr("redis://a")),
    )
    return create_app(settings).openapi()


def operations(document: dict[str, dict[str, dict[str, dict[str, object]]]]) -> list[tuple[str, dict]]:
    return [
        (f"{verb} {path}", operation)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    ]


def test_every_operation_says_what_it_does_and_shows_an_example(document: dict) -> None:
    for name, operation in operations(document):
        assert operation["summary"], name
        assert operation["description"], name
        good = next(answer for status, answer in operation["responses"].items() if status.startswith("2"))
        for media_type, content in good["content"].items():
            assert "example" in json.dumps(resolved(document, content)), (name, media_type)
        if "requestBody" in operation:
            contents = operation["requestBody"]["content"]
            assert len(contents) == (2 if name == "post /v1/documents" else 1), name
            for content in contents.values():
                assert "example" in json.dumps(resolved(document, content)), name


def test_errors_have_the_one_shape_and_none_is_the_frameworks(document: dict) -> None:
    for name, operation in operations(document):
        assert "422" not in operation["responses"], name
        for status, answer in operation["responses"].items():
            if status[0] in "45" and "/health/" not in name:
                schema = answer["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorReply"}, (name, status)
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_the_examples_are_what_they_describe() -> None:
    documented = (
        replies,
        ask_replies,
        response_replies,
        openai_replies,
        requests,
        schemas,
        summary_replies,
        summary_schemas,
    )
    models = [model for module in documented for model in vars(module).values()]
    for model in (*models, JobRequest, CancelRequest, ChatRequest, TextRequest, ResponseRequest):
        if isinstance(model, type) and issubclass(model, BaseModel) and model is not BaseModel:
            for example in model.model_json_schema().get("examples", []):
                model.model_validate(example)


def test_every_reference_leads_somewhere(document: dict) -> None:
    resolved(document, document)


def test_the_page_names_every_operation_and_loads_nothing(document: dict) -> None:
    page = docs_page.page(document)
    for path in document["paths"]:
        assert path in page
    loader = Loader()
    loader.feed(page)
    assert loader.loaded == []
    assert loader.links == ["openapi.json"]


class Loader(HTMLParser):
    """Collects what a page loads, and where it links to outside itself."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag in {"script", "link", "img", "iframe"} or "src" in found:
            self.loaded.append(tag)
        if (target := found.get("href")) and not target.startswith("#"):
            self.links.append(target)


def resolved(document: dict, node: object) -> object:
    """The node with its references followed, one level of each."""
    if isinstance(node, dict):
        if "$ref" in node:
            return document["components"]["schemas"][node["$ref"].rsplit("/", 1)[-1]]
        return {key: resolved(document, value) for key, value in node.items()}
    if isinstance(node, list):
        return [resolved(document, each) for each in node]
    return node
