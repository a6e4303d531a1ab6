"""Own templates in the database and over HTTP: composed, kept once, returned, counted, guarded, refused."""

from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from api_server import error_of
from asking.answers import ask, reply, run_jobs
from asking.fields import extract
from asking.over_http import a_document, submitted, work
from jobs import summaries
from jobs.extractions import queries as of_extractions
from jobs.models import DEFAULT_TENANT, Job, PromptText, Summary
from jobs.prompts import store
from jobs.prompts.messages import parse
from jobs.questions import queries as of_answers
from jobs.states.summary import Purpose
from jobs.summaries import queries, stored_templates
from jobs.summaries.own_templates import OwnTemplate
from jobs.tenants import stored_bytes
from summary_support import SMALL, create, plan_all, prepare_all, ready_document, run_to_end, text_of
from support import register_engine

QUESTION = "What is the rent?"
LAWYER = {"whole": "As a lawyer, say: {{question}}"}


def own(**parts: str) -> OwnTemplate:
    return OwnTemplate.of(parts)


def prompts_of(session: Session, made: Summary) -> list[str]:
    """The user's messages of its jobs, in their order."""
    query = select(PromptText.id).join(Job, Job.text_id == PromptText.id).where(Job.summary_id == made.id)
    text_ids = session.scalars(query.order_by(Job.id)).all()
    return [parse(store.load(session, each).canonical).messages[-1].content for each in text_ids]


def test_every_prompt_of_a_summary_has_the_caller_s_words_and_its_part(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    template = own(map="Note the numbers, {{words}} words.", reduce="Join the notes. {{style}}")
    (summary,) = create(session, ready_document(session, text_of(2000)), template=template)
    plan_all(session)
    run_to_end(session)
    session.refresh(summary)
    prompts = prompts_of(session, summary)
    chunks = [each for each in prompts if "instructions. Note the numbers, " in each]
    assert summary.plan is not None
    assert len(chunks) == summary.plan["chunks"] != 1
    assert all(f"This was part {place} of {len(chunks)}." in each for place, each in enumerate(chunks, 1))
    joins = [each for each in prompts if "instructions. Join the notes. " in each]
    assert len(chunks) + len(joins) == len(prompts)
    assert joins[-1].endswith("Write coherent paragraphs without headings or lists.")
    seen = queries.describe(session, summary)
    assert seen["template"] == template.as_json()
    assert (seen["templates"]["whole"], seen["chat_template_kwargs"]) == ("whole-1", {})
    assert [str(seen["templates"][part])[:7] for part in ("map", "reduce")] == ["custom-", "custom-"]


def test_answers_and_extractions_are_asked_in_the_caller_s_words(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    body = "The rent is 900. {{question}} {{fields}}"
    document = ready_document(session, body)
    (asked,) = ask(session, document, questions_=["What is {{words}}?"], template=own(**LAWYER), length=64)
    form = own(whole="Fill the form: {{fields}}")
    (extracted,) = extract(
        session, document, template=form, length=96, chat_template_kwargs={"thinking": False}
    )
    plan_all(session)
    prepare_all(session)
    (of_question,), (of_fields,) = prompts_of(session, asked), prompts_of(session, extracted)
    assert "no instructions. As a lawyer, say: What is {{words}}?\n\nAnswer with a JSON" in of_question
    assert 'no instructions. Fill the form: "rent": {' in of_fields
    assert all(f"\n{body}\n" in each for each in (of_question, of_fields)), "a document is never filled in"
    (answers,) = of_answers.describe(session, [asked])
    assert (answers["template"], answers["templates"]["map"]) == (LAWYER, "answer-map-1")
    (fields,) = of_extractions.describe(session, [extracted])
    assert (fields["template"], fields["templates"]["map"]) == (form.as_json(), "extraction-map-1")
    assert fields["chat_template_kwargs"] == {"thinking": False}


def test_a_longer_template_leaves_less_room_for_the_text(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    document = ready_document(session, text_of(2000))
    plain, wordy = (
        create(session, document, template=template)[0]
        for template in (None, own(**dict.fromkeys(("whole", "map", "reduce"), "word " * 180)))
    )
    plan_all(session)
    assert plain.plan is not None
    assert wordy.plan is not None
    assert wordy.plan["chunk_tokens"] < plain.plan["chunk_tokens"]  # type: ignore[operator]  # numbers
    run_to_end(session)
    assert {plain.state, wordy.state} == {"completed"}, "each prompt fits, so its template was counted"


def test_a_template_is_kept_once_and_goes_with_the_last_row_that_has_it(session: Session) -> None:
    register_engine(session, capacity=SMALL)
    one, other = (ready_document(session, each) for each in ("one text", "another text"))
    template, before = own(whole="Sum up: {{question}}"), stored_bytes.read(session, DEFAULT_TENANT)
    kept = stored_templates.put(session, template, tenant_id=DEFAULT_TENANT)
    size = session.scalar(select(func.octet_length(PromptText.body)).where(PromptText.id == kept))
    assert stored_bytes.read(session, DEFAULT_TENANT) - before == size
    made = [(each, Purpose.SUMMARY) for each in create(session, one, other, template=template)]
    made += [(each, Purpose.ANSWERS) for each in ask(session, one, questions_=["Why?"], template=template)]
    assert {each.template_id for each, _ in made} == {kept}
    for row, purpose in made:
        assert session.get(PromptText, kept, populate_existing=True) is not None
        summaries.cancel(session, row.id, tenant_id=DEFAULT_TENANT, purpose=purpose)
        summaries.remove(session, row.id, tenant_id=DEFAULT_TENANT, purpose=purpose)
    assert session.scalar(select(PromptText.id).where(PromptText.id == kept)) is None


def test_the_database_keeps_the_guard_against_releases_without_templates(session: Session) -> None:
    (made,) = create(session, ready_document(session, "a text"), template=own(whole="Sum up."))
    session.flush()
    bare = text("UPDATE summaries SET chat_template_kwargs = '{}' WHERE id = :id")
    with pytest.raises(IntegrityError, match="template_is_guarded"):
        session.execute(bare, {"id": made.id})


KINDS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("/v1/summaries", {}, {"whole": "Sum up in {{words}} words.", "reduce": "Join."}),
    ("/v1/answers", {"questions": [QUESTION]}, LAWYER),
    ("/v1/extractions", {"schema": {"type": "object", "properties": {"rent": {"type": "number"}}}},
     {"whole": "Fill in: {{fields}}"}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "asked", "template"), KINDS)
def test_a_template_is_returned_estimated_and_part_of_what_a_key_stands_for(
    http: httpx2.Client,
    sessions: sessionmaker[Session],
    path: str,
    asked: dict[str, Any],
    template: dict[str, str],
) -> None:
    document = a_document(sessions, "The rent is 900.")
    headers = {"Idempotency-Key": f"key of {path}"}
    body = {"documents": [document], **asked, "template": template}
    first = http.post(path, json=body, headers=headers)
    assert first.status_code == 202, first.text
    (made,) = first.json()["data"]
    assert made["template"] == template
    assert made["templates"]["whole"].startswith("custom-")
    assert http.post(path, json=body, headers=headers).headers["Idempotent-Replayed"] == "true"
    for others in ({**body, "template": {"whole": f"{template['whole']}!"}}, {**body, "template": None}):
        assert http.post(path, json=others, headers=headers).status_code == 409
    (plain,) = submitted(http, path, (document,), **asked)
    assert (plain["template"], http.get(f"{path}/{made['id']}").json()["template"]) == (None, template)
    longer = {**asked, "template": {"whole": template["whole"] + " word" * 500}}
    with_own, without = (
        http.post(f"{path}/estimate", json={"tokens": [10], **each}).json()["prompt_tokens"]
        for each in (longer, asked)
    )
    assert with_own > without + 200


@pytest.mark.parametrize(("path", "asked", "template"), KINDS)
@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({}, "template"),
        ({"whole": "{{nonsense}}"}, "template.whole"),
        ({"map": "x" * 4001}, "template.map"),
        ({"join": "x"}, "template.join"),
    ],
)
def test_a_wrong_template_is_refused_by_its_part_and_nothing_is_made(
    http: httpx2.Client,
    sessions: sessionmaker[Session],
    path: str,
    asked: dict[str, Any],
    template: dict[str, str],
    wrong: dict[str, str],
    param: str,
) -> None:
    assert template != wrong
    document = a_document(sessions, "The rent is 900.")
    for place, of in ((path, {"documents": [document]}), (f"{path}/estimate", {"tokens": [10]})):
        answer = http.post(place, json={**of, **asked, "template": wrong})
        assert (answer.status_code, error_of(answer)["param"]) == (400, param), answer.text
    assert http.get(path).json()["data"] == []


def test_answers_asked_in_own_words_are_settled_as_others(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    document = a_document(sessions, "The rent is 900.")
    (made,) = submitted(http, "/v1/answers", (document,), questions=[QUESTION], template=LAWYER)

    def say_the_rent(session: Session) -> None:
        run_jobs(session, lambda *_: reply("900", "The rent is 900"), asked=lambda prompt: (prompt, ""))

    work(sessions, say_the_rent)
    seen = http.get(f"/v1/answers/{made['id']}").json()
    assert (seen["state"], seen["template"], seen["answers"][0]["answer"]) == ("completed", LAWYER, "900")
