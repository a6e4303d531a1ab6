"""The request of a run: from a job, its prompt and what it has generated."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from jobs.embeddings import EMBED_TASK
from jobs.prompts.counter import PromptCounter
from jobs.prompts.estimates import turns_of
from jobs.prompts.store import CountedPrompt
from jobs.prompts.tokenizer import unpack_ids
from jobs.queries import QueuedJob
from jobs.tenants.cache_salts import CacheSalts
from worker.engine.client import EngineModel
from worker.engine.request import Request, prompt_text
from worker.inference.answer import Answer, EndTokens
from worker.inference.run import Run
from worker.inference.sampling import dimensions_of, num_top_of, sampling_of, stop_ids_of, stops_of
from worker.inference.text_answer import AnyAnswer, EmbeddingAnswer, TextAnswer

_NO_END: Final = -1


@dataclass(frozen=True)
class RequestMaker:
    """Makes the requests of runs.

    Attributes:
        counter: with the engine's tokenizer.
        salts: keep tenants apart in the engine's cache.
    """

    counter: PromptCounter
    salts: CacheSalts

    def empty_answer(self, job: QueuedJob, model: EngineModel) -> AnyAnswer:
        """Return what takes the tokens of a job's answer."""
        tokenizer, stops = self.counter.tokenizer, stops_of(job)
        if job.task == EMBED_TASK:
            return EmbeddingAnswer(dimensions=dimensions_of(job))
        if not model.served.abilities.gives_ids:
            return TextAnswer(tokenizer, max_tokens=job.max_tokens, stops=stops)
        ends = EndTokens(stop_ids_of(job), ignores_own=bool(job.sampling.get("ignore_eos")))
        return Answer(
            tokenizer,
            max_tokens=job.max_tokens,
            stops=stops,
            is_whole=job.is_whole,
            ends=ends,
            num_top=num_top_of(job),
        )

    def make(self, run: Run, prompt: CountedPrompt, model: EngineModel) -> Request:
        """Make the request for the next segment of the run's answer.

        Writing a long prompt as text takes as long as it is; ids are only copied.
        """
        job, answer, form = run.claim.job, run.answer, run.form
        tokenizer, abilities = self.counter.tokenizer, model.served.abilities
        ids = np.concatenate([unpack_ids(prompt.packed_ids), np.array(answer.ids, dtype=np.int32)])
        takes_other = abilities.takes_ids or tokenizer.is_estimate
        sampling = sampling_of(
            job, start=len(answer.ids), max_tokens=answer.num_wanted, varies=form.is_unguided
        )
        return Request(
            request_id=run.lease.lease_id.hex,
            ids=ids,
            max_tokens=answer.num_wanted,
            end_id=_NO_END if sampling.ignores_end else tokenizer.end_id,
            pad_id=tokenizer.pad_id,
            sampling=sampling,
            text="" if takes_other else prompt_text(tokenizer, ids, adds_bos=abilities.adds_bos),
            turns=turns_of(tokenizer, ids) if tokenizer.is_estimate else (),
            # A server would end the answer at one that the model only thinks of.
            stops=() if answer.has_own_stops else stops_of(job),
            vocabulary=tokenizer.token_bytes,
            guide=form.guide if form.is_guided else None,
            num_top=num_top_of(job),
            adapter=run.adapter,
            tensors=run.tensors,
            is_embedding=job.task == EMBED_TASK,
        )

    def salted(self, request: Request, job: QueuedJob, model: EngineModel) -> Request:
        """Return the request with its tenant's salt, where the engine takes one; the salts are ready."""
        if not model.served.abilities.takes_cache_salt:
            return request
        return replace(request, cache_salt=self.salts.of(job.tenant_id))
