"""What tests of answers share: documents with facts, scripted replies to their prompts, and settled ends."""

import json
import re
from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session

from jobs import questions
from jobs.extractions.settling import concluding
from jobs.models import DEFAULT_TENANT, Job, Summary
from jobs.models.document import Document
from jobs.prompts import store
from jobs.prompts.confined.answer_faults import find_fault
from jobs.prompts.messages import parse
from jobs.questions import DocumentsSpec
from jobs.questions.forest import DEFAULT_LENGTH
from jobs.questions.queries import describe_whole
from jobs.questions.settling import ready_to_settle, settle
from summary_support import claim_next, complete, fail, prepare_all
from support import MODEL

# Says to a part of a document and a question what a model replies; None: its job fails.
Script = Callable[[str, str], str | None]


def reply(answer: str = "", quote: str = "") -> str:
    """A reply in the form that the prompts ask for."""
    return json.dumps({"found": bool(answer), "answer": answer, "quote": quote})


def look_up(text: str, question: str) -> str | None:
    """Answer "What is the X?" by "The X is Y." in the text, as exactly as a test needs it."""
    subject = question.removeprefix("What is the ").removesuffix("?")
    found = re.search(rf"The {re.escape(subject)} is ([^.]+)\.", text)
    if found is not None:
        return reply(found[1], found[0])
    joined = re.search(r"Answer: (.+)\nQuote: (.+)", text)
    return reply(joined[1], joined[2]) if joined else reply()


def asked_of(canonical: str) -> tuple[str, str]:
    """The material and the question of a prompt."""
    user = parse(canonical).messages[-1].content
    (question,) = re.findall(r"in at most \d+ words: (.+)\n\nAnswer with a JSON object", user)
    return user[: user.rindex("</document")], question


def ask(session: Session, *documents: Document, questions_: list[str], **fields: object) -> list[Summary]:
    """Answers of these documents that wait to be planned."""
    spec = spec_of(*documents, **{"length": DEFAULT_LENGTH, **fields})
    return questions.create(session, spec, questions=questions_, tenant_id=DEFAULT_TENANT)


def spec_of(*documents: Document, **fields: object) -> DocumentsSpec:
    """A request about these documents."""
    return DocumentsSpec(
        document_ids=[each.id for each in documents],
        model=MODEL,
        **fields,  # type: ignore[arg-type]  # named by the caller
    )


def run_jobs(
    session: Session,
    script: Script = look_up,
    *,
    asked: Callable[[str], tuple[str, str]] = asked_of,
    max_steps: int = 1000,
) -> list[str]:
    """All jobs that can run have ended as the script says; return their prompts, in the order of claims."""
    prompts: list[str] = []
    for _ in range(max_steps):
        prepare_all(session)
        claimed = claim_next(session)
        if claimed is None:
            return prompts
        job = session.get_one(Job, claimed.job.id)
        assert job.text_id is not None
        prompts.append(store.load(session, job.text_id).canonical)
        said = script(*asked(prompts[-1]))
        if said is None:
            fail(session, claimed, "invalid_output")
        else:
            complete(session, claimed, said)
    raise AssertionError("it does not end")


def seen(session: Session, asked: Summary) -> dict[str, Any]:
    """The answers as their caller sees them."""
    return {**describe_whole(session, asked)}


def settle_all(session: Session) -> int:
    """All answers whose jobs have ended are settled; return their number."""
    ready = session.scalars(ready_to_settle()).all()
    found = settle(session, ready, concluding=concluding(lambda text, guide: find_fault(guide, text)))
    session.expire_all()
    return found
