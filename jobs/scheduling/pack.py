"""The choice of the jobs that start together on an engine, and what each of their claims needs."""

from dataclasses import replace

from jobs.ids import uuid7
from jobs.scheduling.engine_load import EngineLoad
from jobs.scheduling.packing import Candidate, Choice, Family, Packer, Reserved, Reuse, slot_wait
from jobs.scheduling.prefixes.engine_prefixes import EnginePrefixes, family_of
from jobs.scheduling.prefixes.followers import choose_follower, with_reuse
from jobs.scheduling.queue import Queue, charge_of, prompt_charge_of
from jobs.starting import Claim
from jobs.states import Lane
from jobs.transitions import Lease


def pack(queue: Queue, load: EngineLoad, *, limit: int | None = None) -> list[Claim]:
    """Choose jobs one after the other, each as if those before it had started; take them off the queue.

    Args:
        queue: its candidates in rank order.
        load: of the engine.
        limit: most jobs to choose; None: as many as fit.
    """
    claims = list[Claim]()
    prefixes = queue.prefixes
    if prefixes is not None and _may_share(queue, prefixes):
        while (limit is None or len(claims) < limit) and (claim := _next_of_families(queue, prefixes, load)):
            claims.append(claim)
            load = with_started(load, claim)
        return claims
    packer = Packer(
        queue.candidates,
        list(load.reserved.values()),
        load.budget,
        max_batch_size=load.capacity.max_batch_size,
        policy=queue.policy.packing,
    )
    while limit is None or len(claims) < limit:
        choice = packer.choose()
        if choice.start is None:
            break
        wait = packer.slot_wait
        packer.start(choice.start)
        claims.append(_claim(queue, queue.take(choice.start), choice, slot_wait=wait))
    return claims


def with_started(load: EngineLoad, claim: Claim) -> EngineLoad:
    """Return the engine's load once this job has started."""
    job, own_blocks = claim.job, claim.blocks - claim.shared_blocks
    family = None if claim.family is None else Family(job.tenant_id, claim.family)
    started = Reserved(
        job.id,
        own_blocks,
        claim.slot_wait + claim.steps,
        lane=Lane(job.lane),
        is_whole=job.is_whole,
        recompute_tokens=None if job.num_yields or job.is_whole else job.prompt_tokens,
        output_tokens=claim.output_tokens,
        family=family,
        text_id=job.text_id,
        reserved_blocks=claim.blocks,
        rank=job.rank,
        prompt_tokens=job.prompt_tokens,
        unread_tokens=job.prompt_tokens + job.completion_tokens,
        waits=load.budget.next_waits,
    )
    budget = load.budget.after(own_blocks, alone=claim.alone)
    return replace(load, reserved={**load.reserved, claim.lease.lease_id: started}, budget=budget)


def _may_share(queue: Queue, prefixes: EnginePrefixes) -> bool:
    """Return True if any candidate begins like another one, or with what the engine has or reads."""
    found = [prefixes.family_of(queue.jobs[each.job_id]) for each in queue.candidates]
    families = [each for each in found if each is not None]
    return len(set(families)) < len(families) or not prefixes.families.keys().isdisjoint(families)


def _next_of_families(queue: Queue, prefixes: EnginePrefixes, load: EngineLoad) -> Claim | None:
    """Choose the next job where some begin alike, or with what the engine has; None: none may start."""
    candidates = [_described(queue, prefixes, each) for each in queue.candidates]
    reserved = list(load.reserved.values())
    choice = choose_follower(
        candidates,
        reserved,
        load.budget,
        postponed=prefixes.replay.postponed,
        max_batch_size=load.capacity.max_batch_size,
        policy=queue.policy.packing,
    )
    if choice.start is None:
        return None
    return _claim(queue, queue.take(choice.start), choice, slot_wait=slot_wait(reserved, load.budget))


def _described(queue: Queue, prefixes: EnginePrefixes, candidate: Candidate) -> Candidate:
    """Return a candidate with what the engine has of its prompt now."""
    job = queue.jobs[candidate.job_id]
    return replace(
        with_reuse(candidate, prefixes.reuse(job), is_credited=prefixes.replay.is_credited),
        family=prefixes.family_of(job),
        lead=candidate.lead + queue.charged[job.tenant_id] / candidate.weight,
        is_waiting=prefixes.is_waiting(job),
    )


def _claim(queue: Queue, chosen: Candidate, choice: Choice, *, slot_wait: int) -> Claim:
    """Describe what the claim of this candidate needs, and note that it is about to start.

    Args:
        queue: it was in.
        chosen: the candidate.
        choice: of it.
        slot_wait: steps until it has a slot.
    """
    job, prefixes = queue.jobs[chosen.job_id], queue.prefixes
    family, reuse, postponed_steps = family_of(job), Reuse(), None
    if prefixes is not None:
        reuse = prefixes.reuse(job)
        family = None if prefixes.reads_twice(job) else prefixes.family_of(job)
        postponed_steps = prefixes.replay.postpone(*choice.postpones) if choice.postpones else None
        prefixes.note_chosen(job)
    charge = charge_of(job, chosen.output_tokens, reused_tokens=reuse.tokens)
    queue.charged[job.tenant_id] += charge
    return Claim(
        Lease(job.id, uuid7()),
        job,
        chosen.blocks,
        chosen.output_tokens,
        steps=chosen.steps,
        slot_wait=slot_wait,
        overtakes=choice.overtakes,
        alone=chosen.alone,
        charge=charge,
        charged_prompt=prompt_charge_of(job, reused_tokens=reuse.tokens),
        shared_blocks=reuse.blocks,
        anchor=reuse.anchor,
        family=None if family is None else family.digest,
        postponed_id=choice.postpones[0] if choice.postpones else None,
        postponed_steps=postponed_steps,
        reused_tokens=reuse.tokens,
        likely_tokens=chosen.output_tokens - chosen.unlikely_tokens,
        is_awaited=prefixes is not None and family is not None,
    )
