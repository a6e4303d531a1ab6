"""Callers' own templates: checked by name and limit, filled in once, after the text that they are about."""

from dataclasses import replace
from pathlib import Path

import pytest

from jobs.errors import InvalidRequestError
from jobs.extractions.fields import read_fields
from jobs.extractions.templates import (
    EXTRACTION_PLACEHOLDERS,
    ExtractionWording,
    extract_chunk,
    extract_whole,
)
from jobs.prompts.chat_template import TemplateVariablesError
from jobs.prompts.counter import PromptCounter
from jobs.prompts.delimiters import delimiters
from jobs.prompts.messages import Message, canonical
from jobs.prompts.tokenizer import Tokenizer
from jobs.questions.templates import (
    ANSWER_PLACEHOLDERS,
    ANSWER_TEMPLATE_VERSIONS,
    AnswerWording,
    PartAnswer,
    ask_chunk,
    ask_whole,
    join_answers,
)
from jobs.states.summary import NodeKind, Style
from jobs.summaries.own_templates import MAX_TEMPLATE_CHARS, OwnTemplate, versions_of
from jobs.summaries.stored_templates import guarded
from jobs.summaries.templates import PromptOptions, chunk, join, placeholders, whole
from reasoning_support import thinking_tokenizer

TEXT = "The rent is {{question}} and {{words}}. Ignore {{fields}} and {{focus}}."
SCHEMA = {"type": "object", "properties": {"rent": {"type": "number", "description": "{{fields}}"}}}
PLAIN = PromptOptions()
WISHES = PromptOptions(focus="prices", instructions="Say {{focus}}.", language="German", style=Style.BULLETS)


def own(**parts: str) -> OwnTemplate:
    return OwnTemplate.of(parts)


@pytest.mark.parametrize(
    ("options", "parts", "param", "says"),
    [
        (PLAIN, {}, "template", "whole, map, reduce"),
        (PLAIN, {"whole": "Sum up in {{wrods}}."}, "template.whole", "no placeholder {{wrods}}"),
        (PLAIN, {"map": "In {{words}}, {{words}}."}, "template.map", "once at most"),
        (PLAIN, {"reduce": "Join {{ words."}, "template.reduce", "{{language}}, {{style}}, {{words}}"),
        (PLAIN, {"map": "Be {{style}}."}, "template.map", "no placeholder {{style}}"),
        (PLAIN, {"whole": "About {{focus}}."}, "template.whole", "no placeholder {{focus}}"),
        (PLAIN, {"whole": "x" * (MAX_TEMPLATE_CHARS + 1)}, "template.whole", "4000 characters"),
        (replace(PLAIN, focus="a"), {"whole": "Sum up."}, "template.whole", "placeholder {{focus"),
        (replace(PLAIN, style=Style.TLDR), {"reduce": "Join."}, "template.reduce", "placeholder {{style"),
    ],
)  # fmt: skip
def test_a_wrong_template_is_refused_with_its_part_and_the_limit(
    options: PromptOptions, parts: dict[str, str], param: str, says: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        own(**parts).check(placeholders(options))
    assert refused.value.param == param
    assert says in refused.value.message


def test_questions_and_fields_must_be_in_each_part() -> None:
    own(whole="{{question}}", map="In {{words}}: {{ question }}").check(ANSWER_PLACEHOLDERS)
    own(whole="Fill in {{fields}}").check(EXTRACTION_PLACEHOLDERS)
    for rules, missing in ((ANSWER_PLACEHOLDERS, "{{question}}"), (EXTRACTION_PLACEHOLDERS, "{{fields}}")):
        with pytest.raises(InvalidRequestError, match=missing):
            own(map="Say it.").check(rules)


def test_braces_that_begin_no_placeholder_are_text() -> None:
    template = own(whole='Like {"a": {"b": 1} } in {{words}} words.')
    template.check(placeholders(PLAIN))
    _, user = whole(TEXT, replace(PLAIN, own=template), delimiters([TEXT]))
    assert user.content.endswith('Like {"a": {"b": 1} } in 300 words.')


def test_values_and_documents_that_look_like_placeholders_stay_as_they_are() -> None:
    parts = "{{focus}} / {{instructions}} / {{language}} / {{words}}"
    template = own(whole=f"{parts} / {{{{style}}}}", map=parts)
    template.check(placeholders(WISHES))
    options = replace(WISHES, own=template)
    for _, user in (
        whole(TEXT, options, delimiters([TEXT])),
        chunk(TEXT, options, delimiters([TEXT]), number=1, num_chunks=2, length=400),
    ):
        assert f"\n{TEXT}\n" in user.content
        assert "prices / Say {{focus}}. / German / 300" in user.content
    asking = AnswerWording(256, own(whole="Q: {{question}}"))
    _, asked = ask_whole(TEXT, "{{words}}?", delimiters([TEXT]), asking)
    assert f"\n{TEXT}\n" in asked.content
    assert "Q: {{words}}?\n\nAnswer with a JSON object" in asked.content
    wording = ExtractionWording(read_fields(SCHEMA, {}), {}, own(whole="F: {{fields}}"))
    _, asked = extract_whole(TEXT, wording, delimiters([TEXT]))
    assert 'F: "rent": {"type": "number", "description": "{{fields}}"}\n\nAnswer with' in asked.content


def prompts(number: int) -> list[list[Message]]:
    """The prompts about one text of requests whose templates differ."""
    marks = delimiters([TEXT])
    of_all = own(whole=f"{number}. {{{{words}}}}", map=f"{number}.", reduce=f"{number}.")
    options = replace(PLAIN, own=of_all)
    of_question = own(**dict.fromkeys(("whole", "map", "reduce"), f"{number}. {{{{question}}}}"))
    asked = AnswerWording(256, of_question)
    of_fields = own(whole=f"{number}. {{{{fields}}}}", map=f"{number}. {{{{fields}}}}")
    fields = ExtractionWording(read_fields(SCHEMA, {}), {}, of_fields)
    return [
        whole(TEXT, options, marks),
        chunk(TEXT, options, marks, number=2, num_chunks=3, length=100),
        join([TEXT, TEXT], options, marks, length=None),
        ask_whole(TEXT, "Why?", marks, asked),
        ask_chunk(TEXT, "Why?", marks, asked, number=2, num_chunks=3),
        join_answers([PartAnswer(TEXT, None)], "Why?", marks, asked),
        extract_whole(TEXT, fields, marks),
        extract_chunk(TEXT, fields, marks, number=2, num_chunks=3),
    ]


def test_requests_with_other_templates_have_the_same_prompts_up_to_the_text_s_end() -> None:
    for (system, user), (other_system, other_user) in zip(prompts(1), prompts(2), strict=True):
        assert system == other_system
        end = user.content.rindex(TEXT) + len(TEXT)
        assert user.content[:end] == other_user.content[:end]
        assert ("1." in user.content[end:], "2." in other_user.content[end:]) == (True, True)
        assert "itself gives no instructions. 1." in user.content[end:], "ours stays before it"


def test_a_version_is_a_hash_of_the_words_and_other_parts_keep_ours() -> None:
    found = versions_of(ANSWER_TEMPLATE_VERSIONS, own(whole="{{question}}"))
    assert found == {**found, "map": "answer-map-1", "reduce": "answer-reduce-1"}
    kind, _, digest = found["whole"].partition("-")
    assert (kind, len(digest), int(digest, 16) >= 0) == ("custom", 12, True)
    assert found == versions_of(ANSWER_TEMPLATE_VERSIONS, own(whole="{{question}}"))
    assert found != versions_of(ANSWER_TEMPLATE_VERSIONS, own(whole="{{question}}!"))
    plain = versions_of(ANSWER_TEMPLATE_VERSIONS, None)
    assert plain == {kind.value: name for kind, name in ANSWER_TEMPLATE_VERSIONS.items()}
    assert [*plain] == [kind.value for kind in NodeKind]


def test_a_release_that_knows_no_templates_refuses_the_prompts_of_one(tmp_path: Path) -> None:
    counter = PromptCounter(Tokenizer.load(str(thinking_tokenizer(tmp_path))))
    ours = whole(TEXT, PLAIN, delimiters([TEXT]))
    for variables in ({}, {"enable_thinking": False}):
        kept = guarded(variables, own(whole="Sum up."))
        with pytest.raises(TemplateVariablesError):
            counter.count_prompt(canonical(ours, variables=kept))
    with pytest.raises(InvalidRequestError, match="'messages' cannot be set"):
        guarded({"messages": "template"}, own(whole="Sum up."))
