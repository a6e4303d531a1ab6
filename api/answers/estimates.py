"""Dry runs of answers: makes the plan that a request would get now, and writes nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.answers.requests import AnswersEstimateRequest, AnswersOptions, DocumentEstimateFields
from api.http.identifiers import parse_documents
from api.runtime.compute import LONG_BYTES
from api.runtime.services import Services
from api.summaries.estimates import read_capacities, read_sources
from api.summaries.requests import checked_template
from jobs import documents, ids
from jobs.engines.capacity import Capacity
from jobs.errors import InvalidRequestError, UnavailableError
from jobs.forecast.duration import Estimate
from jobs.forecast.engine_speed import reading_work
from jobs.models import Engine, JsonObject
from jobs.prompts.counter import PromptCounter
from jobs.questions.forest import build_one, find_answer_sizes
from jobs.questions.prompts import answer_overheads, check_answer_variables
from jobs.questions.templates import ANSWER_PLACEHOLDERS, AnswerWording
from jobs.summaries.estimate import Build, Estimated
from jobs.summaries.estimate import estimate as estimate_trees
from jobs.summaries.own_templates import OwnTemplate
from jobs.summaries.tree import Sizes, SourceDocument


async def check_answer_options(services: Services, asked: AnswersOptions) -> None:
    """Try the caller's template variables, if the tokenizer is loaded; otherwise planning meets the error.

    Raises:
        InvalidRequestError: the model's chat template fails with them.
    """
    tokenizer = services.tokenizer.current
    if asked.chat_template_kwargs and tokenizer is not None:
        counter = PromptCounter(tokenizer)
        await services.compute(0, check_answer_variables, asked.chat_template_kwargs, counter)


async def estimate_answers(
    services: Services, asked: AnswersEstimateRequest, *, tenant_id: UUID, model: str
) -> JsonObject:
    """Estimate the parts, jobs, tokens and time that these answers would take; see `estimate_reading`."""
    own = own_template(asked)
    await check_answer_options(services, asked)
    shares_prefixes = await services.transact(_share_prefixes, model=model)

    def sizes(capacities: Sequence[Capacity], counter: PromptCounter) -> Sizes:
        variables = asked.chat_template_kwargs or {}
        wording = AnswerWording(asked.length, own)
        overheads = answer_overheads(asked.questions, counter, wording, variables=variables)
        return find_answer_sizes(capacities, overheads, length=asked.length, chunk_tokens=asked.chunk_tokens)

    num_questions = len(asked.questions)

    def work_of(found: Estimated) -> Estimate:
        work = _for_all(found.as_work(), num_questions)
        if not shares_prefixes:
            return work
        return replace(work, reading=_read_once(found, num_questions, work=reading_work))

    # A tree of each document, whose jobs each question has once: a request may be about millions of jobs.
    build = partial(build_one, num_questions=num_questions)
    reading = Reading(asked, model, sizes, build, times=num_questions, work_of=work_of)
    found, described = await estimate_reading(services, reading, tenant_id=tenant_id)
    read_tokens = int(_read_once(found, num_questions, work=lambda tokens: tokens))
    return {"object": "answers.estimate", **described, "read_tokens": read_tokens}


def own_template(asked: AnswersOptions) -> OwnTemplate | None:
    """Return the caller's own template, checked; None: ours.

    Raises:
        InvalidRequestError: a placeholder is unknown, missing or there twice.
    """
    return checked_template(asked.template, ANSWER_PLACEHOLDERS)


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of documents, each apart, to estimate.

    Attributes:
        asked: by the caller.
        sizes: finds them for engines.
        build: builds the nodes over the leaves of a document.
        times: how often there is each job that is built.
        work_of: adds up the engines' work.
    """

    asked: DocumentEstimateFields
    model: str
    sizes: Callable[[Sequence[Capacity], PromptCounter], Sizes]
    build: Build
    times: int = 1
    work_of: Callable[[Estimated], Estimate] = Estimated.as_work


async def estimate_reading(
    services: Services, reading: Reading, *, tenant_id: UUID
) -> tuple[Estimated, JsonObject]:
    """Estimate the parts, jobs, tokens and time that a reading would take.

    Returns:
        Its trees, and the public shape of the estimate without its kind.

    Raises:
        InvalidRequestError: the tenant has no such document, or the request names none.
        ConflictError: a document is not ready; wait for it.
        UnavailableError: the tokenizer or the database is not available; try again.
    """
    asked, tokenizer = reading.asked, services.tokenizer.current
    if tokenizer is None:
        raise UnavailableError("The tokenizer is not loaded yet; try again.")
    if asked.tokens and asked.documents:
        raise InvalidRequestError("Name documents or tokens, not both.", param="tokens")
    counter = PromptCounter(tokenizer)
    capacities = await services.transact(read_capacities, services=services, model=reading.model)
    sizes = await services.compute(0, reading.sizes, capacities, counter)
    names: list[str | None]
    bodies: Mapping[int, bytes] = {}
    if asked.tokens:
        sources = [SourceDocument(index, num_tokens) for index, num_tokens in enumerate(asked.tokens)]
        names = [None] * len(sources)
    else:
        listed = parse_documents(asked.documents)
        sources, bodies = await services.transact(
            read_sources,
            document_ids=listed,
            tenant_id=tenant_id,
            sizes=sizes,
            chunk_tokens=asked.chunk_tokens,
        )
        names = [ids.document_id(each) for each in listed]

    def load(source: SourceDocument) -> str | None:
        body = bodies.get(source.index)
        return None if body is None else "".join(documents.iterate_text(body))

    found = await services.compute(
        LONG_BYTES + 1,
        estimate_trees,
        sources,
        load,
        counter.count_text,
        sizes,
        combine=False,
        chunk_tokens=asked.chunk_tokens,
        starts=counter.token_starts,
        build=reading.build,
    )
    seconds = await services.queue_positions.seconds_until_done(reading.work_of(found), reading.model)
    is_exact = not asked.tokens and all(
        source.index in bodies or len(tree) == 1 for source, tree in zip(sources, found.trees, strict=True)
    )
    return found, _object(found, reading.times, sizes, sources, names, seconds=seconds, is_exact=is_exact)


def _share_prefixes(session: Session, *, model: str) -> bool:
    """Return True if every engine of the model computes once what prompts have in common."""
    return bool(session.scalar(select(func.bool_and(Engine.shares_prefix)).where(Engine.model == model)))


def _for_all(work: Estimate, num_questions: int) -> Estimate:
    return replace(
        work,
        num_lines=work.num_lines * num_questions,
        prompt_tokens=work.prompt_tokens * num_questions,
        max_output_tokens=work.max_output_tokens * num_questions,
        reading=work.reading * num_questions,
    )


def _read_once(found: Estimated, num_questions: int, *, work: Callable[[int], float]) -> float:
    """Add up the work of all prompts where the tokens of a text are computed once.

    Args:
        found: the trees of one question.
        num_questions: that are asked.
        work: of so many tokens.
    """
    first = sum(work(node.prompt_tokens) for node in found.nodes)
    further = sum(work(node.prompt_tokens - (node.leaf.tokens if node.leaf else 0)) for node in found.nodes)
    return first + (num_questions - 1) * further


def _object(
    found: Estimated,
    times: int,
    sizes: Sizes,
    sources: Sequence[SourceDocument],
    names: Sequence[str | None],
    *,
    seconds: float | None,
    is_exact: bool,
) -> JsonObject:
    return {
        "chunks": sum(found.leaves),
        "levels": max(found.levels),
        "jobs": found.num_jobs * times,
        "prompt_tokens": sum(node.prompt_tokens for node in found.nodes) * times,
        "completion_tokens": {
            "expected": sum(node.output_tokens for node in found.nodes) * times,
            "max": sum(node.max_tokens for node in found.nodes) * times,
        },
        "chunk_tokens": sizes.chunk_tokens,
        "is_exact": is_exact,
        "estimated_seconds": None if seconds is None else round(seconds),
        "documents": [
            {
                "id": name,
                "tokens": source.num_tokens,
                "chunks": leaves,
                "levels": levels,
                "jobs": len(tree) * times,
            }
            for name, source, leaves, levels, tree in zip(
                names, sources, found.leaves, found.levels, found.trees, strict=True
            )
        ],
    }
