"""Dry runs of summaries: makes the plan that a request would get now, and writes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.http.identifiers import parse_documents
from api.runtime.compute import LONG_BYTES
from api.runtime.services import Services
from api.summaries.requests import SummaryEstimateRequest, SummaryOptions, checked_template
from jobs import documents, ids
from jobs.engines import registry
from jobs.engines.capacity import Capacity
from jobs.errors import ConflictError, InvalidRequestError, UnavailableError
from jobs.models import JsonObject
from jobs.models.document import Document
from jobs.prompts.counter import PromptCounter
from jobs.states.document import DocumentState
from jobs.states.summary import Style
from jobs.summaries import tree
from jobs.summaries.estimate import Estimated, estimate
from jobs.summaries.prompts import check_variables, overheads
from jobs.summaries.templates import PromptOptions, placeholders
from jobs.summaries.tree import Sizes, SourceDocument

# Documents with up to this many tokens in total are really cut, a few seconds of work; beyond it the number
# of chunks is computed from lengths.
_MAX_CUT_TOKENS = 1_000_000


async def estimate_summaries(
    services: Services, asked: SummaryEstimateRequest, *, tenant_id: UUID, model: str
) -> JsonObject:
    """Estimate the chunks, jobs, tokens and time that these summaries would take.

    Raises:
        InvalidRequestError: the tenant has no such document, or the request names none.
        ConflictError: a document is not ready; wait for it.
        UnavailableError: the tokenizer or the database is not available; try again.
    """
    tokenizer = services.tokenizer.current
    if tokenizer is None:
        raise UnavailableError("The tokenizer is not loaded yet; try again.")
    if asked.tokens and asked.documents:
        raise InvalidRequestError("Name documents or tokens, not both.", param="tokens")
    counter = PromptCounter(tokenizer)
    capacities = await services.transact(read_capacities, services=services, model=model)
    options = prompt_options(asked)
    await check_options(services, options)
    sizes = tree.find_sizes(
        capacities,
        await services.compute(0, overheads, options, counter),
        length=asked.length,
        chunk_tokens=asked.chunk_tokens,
        overlap_tokens=asked.overlap_tokens,
    )
    names: list[str | None]
    bodies: Mapping[int, bytes] = {}
    if asked.tokens:
        sources = [SourceDocument(index, num_tokens) for index, num_tokens in enumerate(asked.tokens)]
        names = [None] * len(sources)
    else:
        document_ids = parse_documents(asked.documents)
        sources, bodies = await services.transact(
            read_sources,
            document_ids=document_ids,
            tenant_id=tenant_id,
            sizes=sizes,
            chunk_tokens=asked.chunk_tokens,
            combine=asked.combine,
        )
        names = [ids.document_id(each) for each in document_ids]

    def load(source: SourceDocument) -> str | None:
        body = bodies.get(source.index)
        return None if body is None else "".join(documents.iterate_text(body))

    found = await services.compute(
        LONG_BYTES + 1,
        estimate,
        sources,
        load,
        counter.count_text,
        sizes,
        combine=asked.combine,
        chunk_tokens=asked.chunk_tokens,
        starts=counter.token_starts,
    )
    seconds = await services.queue_positions.seconds_until_done(found.as_work(), model)
    is_exact = not asked.tokens and all(
        source.index in bodies or leaves == 1 for source, leaves in zip(sources, found.leaves, strict=True)
    )
    return _object(found, sizes, sources, names, seconds=seconds, is_exact=is_exact, combine=asked.combine)


def prompt_options(asked: SummaryOptions) -> PromptOptions:
    """Return the options that the prompts of these summaries depend on.

    Raises:
        InvalidRequestError: a placeholder of the caller's own template is unknown, missing or there twice.
    """
    options = PromptOptions(
        style=Style(asked.style),
        length=asked.length,
        language=asked.language,
        focus=asked.focus,
        instructions=asked.instructions,
        variables=asked.chat_template_kwargs or {},
    )
    return replace(options, own=checked_template(asked.template, placeholders(options)))


async def check_options(services: Services, options: PromptOptions) -> None:
    """Try the caller's template variables, if the tokenizer is loaded; otherwise planning meets the error.

    Raises:
        InvalidRequestError: the model's chat template fails with them.
    """
    tokenizer = services.tokenizer.current
    if options.variables and tokenizer is not None:
        await services.compute(0, check_variables, options, PromptCounter(tokenizer))


def read_capacities(session: Session, *, services: Services, model: str) -> list[Capacity]:
    """Read what the model's engines hold, or what to assume while none has registered."""
    registered = registry.registered_capacities(session)
    return registered.get(model) or [registry.configured_capacity(services.settings.engine)]


def read_sources(
    session: Session,
    *,
    document_ids: Sequence[UUID],
    tenant_id: UUID,
    sizes: Sizes,
    chunk_tokens: int | None,
    combine: bool = False,
) -> tuple[list[SourceDocument], dict[int, bytes]]:
    """Read the documents, and the texts of those that need cutting.

    Raises:
        InvalidRequestError: the tenant has no such document.
        ConflictError: a document is not ready.
    """
    query = select(Document).where(Document.id.in_(document_ids), *documents.visible(tenant_id))
    known = {document.id: document for document in session.scalars(query)}
    sources: list[SourceDocument] = []
    bodies: dict[int, bytes] = {}
    num_tokens = 0
    for index, document_id in enumerate(document_ids):
        document = known.get(document_id)
        if document is None:
            raise InvalidRequestError("There is no such document.", param=f"documents.{index}")
        if document.state != DocumentState.READY or document.num_tokens is None:
            raise ConflictError(f"The document {ids.document_id(document_id)} is {document.state}.")
        source = SourceDocument(index, document.num_tokens)
        sources.append(source)
        is_cut = combine or not tree.fits_whole(source, sizes, asked_chunk_tokens=chunk_tokens)
        num_tokens += source.num_tokens if is_cut else 0
        if is_cut and num_tokens <= _MAX_CUT_TOKENS:
            bodies[index] = documents.load_body(session, document_id)
    return sources, bodies


def _object(
    found: Estimated,
    sizes: Sizes,
    sources: Sequence[SourceDocument],
    names: Sequence[str | None],
    *,
    seconds: float | None,
    is_exact: bool,
    combine: bool,
) -> JsonObject:
    of_each = [found.num_jobs] * len(sources) if combine else [len(tree) for tree in found.trees]
    return {
        "object": "summary.estimate",
        "chunks": sum(found.leaves),
        "levels": max(found.levels),
        "jobs": found.num_jobs,
        "prompt_tokens": sum(node.prompt_tokens for node in found.nodes),
        "completion_tokens": {
            "expected": sum(node.output_tokens for node in found.nodes),
            "max": sum(node.max_tokens for node in found.nodes),
        },
        "chunk_tokens": sizes.chunk_tokens,
        "part_tokens": sizes.chunk_summary_tokens,
        "is_exact": is_exact,
        "estimated_seconds": None if seconds is None else round(seconds),
        "documents": [
            {"id": name, "tokens": source.num_tokens, "chunks": leaves, "levels": levels, "jobs": num_jobs}
            for name, source, leaves, levels, num_jobs in zip(
                names, sources, found.leaves, found.levels, of_each, strict=True
            )
        ],
    }
