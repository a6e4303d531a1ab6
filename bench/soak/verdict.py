"""The verdict on a run: what callers were promised, against what the API and the receiver's log say."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.soak.journal import Promise
from bench.soak.load import ENDPOINT
from bench.soak.receiver import Told
from bench.soak.sightings import JobEnd, Sightings

_TAKEN = range(200, 300)


@dataclass
class Verdict:
    """What is wrong with a run, by kind; nothing, if it went well.

    Attributes:
        lost: promised and never ended, or ended and never told.
        doubled: there twice, told under two ids, or different the second time.
        wrong: anything else that contradicts another source.
    """

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """True if nothing is wrong."""
        return not (self.lost or self.doubled or self.wrong)


def judge(
    promises: Sequence[Promise],
    seen: Sightings,
    told: Sequence[Told],
    *,
    chats: Sequence[tuple[str, str]] = (),
) -> Verdict:
    """Compare all sources, once nothing is under way."""
    verdict = Verdict(wrong=list(seen.faults))
    _ends(promises, seen, verdict)
    _answers(promises, seen, chats, verdict)
    _webhooks(promises, seen, told, verdict)
    _usage(seen, verdict)
    return verdict


def _ends(promises: Sequence[Promise], seen: Sightings, verdict: Verdict) -> None:
    """Check that every promised object has ended, and that no request made two."""
    by_name = Counter(end.custom_id for end in seen.jobs.values() if end.custom_id)
    asked = {each.name for each in promises if each.kind == "job"}
    verdict.doubled += [f"{name} is {by_name[name]} jobs" for name in asked if by_name[name] > 1]
    for job_id, runs in seen.runs.items():
        if (num := runs.count("completed")) != (seen.jobs[job_id].state == "completed"):
            verdict.doubled.append(f"{job_id} is {seen.jobs[job_id].state}, and {num} of its runs completed")
    names = defaultdict[tuple[str, str], set[str]](set)
    for promise in promises:
        names[promise.kind, promise.name].add(promise.id)
        if promise.kind == "job":
            end = seen.jobs.get(promise.id)
            if end is None:
                verdict.lost.append(f"{promise.id} never ended")
            elif end.state == "cancelled" and not promise.is_cancelled:
                verdict.wrong.append(f"{promise.id} is cancelled, and nobody asked for it")
            elif end.state == "completed" and seen.outputs.get(promise.id) is None:
                verdict.lost.append(f"{promise.id} completed without output")
        else:
            _parts(promise, seen, verdict)
    verdict.doubled += [f"{name} is {sorted(ids)}" for (_, name), ids in names.items() if len(ids) > 1]
    verdict.lost += [f"{each} is still open" for each in sorted(seen.open)]


def _parts(promise: Promise, seen: Sightings, verdict: Verdict) -> None:
    end = seen.objects.get(promise.id)
    if end is None:
        verdict.lost.append(f"{promise.id} never ended")
        return
    verdict.doubled += [
        f"{promise.id}: {part} is there {num} times" for part, num in end.parts.items() if num > 1
    ]
    if promise.parts and len(end.parts) != promise.parts:
        verdict.lost.append(f"{promise.id}: {len(end.parts)} of {promise.parts} parts")


def _answers(
    promises: Sequence[Promise], seen: Sightings, chats: Sequence[tuple[str, str]], verdict: Verdict
) -> None:
    """Check that equal prompts had equal answers, however often a run was interrupted."""
    found = defaultdict[str, set[str]](set)
    for promise in promises:
        end = seen.jobs.get(promise.id)
        if promise.prompt and end is not None and end.state == "completed":
            found[promise.prompt].add(seen.outputs.get(promise.id) or "")
    for prompt, output in chats:
        found[prompt].add(output)
    verdict.doubled += [
        f"{prompt} has {len(each)} answers" for prompt, each in found.items() if len(each) > 1
    ]


def _webhooks(promises: Sequence[Promise], seen: Sightings, told: Sequence[Told], verdict: Verdict) -> None:
    """Check that each end was told to each destination, under one id, with one body, as it was."""
    bodies = defaultdict[str, set[str]](set)
    about = defaultdict[str, set[tuple[str, str]]](set)
    taken = set[tuple[str, str]]()
    for each in told:
        bodies[each.id].add(each.digest)
        about[each.object_id].add((each.id, each.type))
        if each.status in _TAKEN:
            taken.add((each.object_id, each.path))
    verdict.doubled += [f"{event} has {len(each)} bodies" for event, each in bodies.items() if len(each) > 1]
    for promise in promises:
        state = _state(promise, seen)
        if state is None:
            continue
        paths = {ENDPOINT} | ({promise.path} if promise.path else set())
        verdict.lost += [
            f"{promise.id} is {state}, and {path} was not told"
            for path in sorted(paths)
            if (promise.id, path) not in taken
        ]
        events = about[promise.id]
        if len(events) > 1:
            verdict.doubled.append(f"{promise.id} was told as {sorted(events)}")
        verdict.wrong += [
            f"{promise.id} is {state}, and was told as {kind}"
            for _, kind in events
            if kind != f"{promise.kind}.{state}"
        ]
    known = {each.id for each in promises}
    verdict.wrong += [f"{each} was told of, and not promised" for each in about if each not in known]


def _state(promise: Promise, seen: Sightings) -> str | None:
    end = seen.jobs.get(promise.id) if promise.kind == "job" else seen.objects.get(promise.id)
    return end.state if end else None


def _usage(seen: Sightings, verdict: Verdict) -> None:
    """Compare the API's sums with those of the jobs that were seen."""
    expected = Counter({f"jobs {state}": 0 for state in ("completed", "failed", "cancelled", "expired")})
    expected.update(dict.fromkeys(("prompt_tokens", "completion_tokens"), 0))
    for end in seen.jobs.values():
        expected.update(dict(_usage_of(end)))
    verdict.wrong += [
        f"usage says {seen.usage.get(name, 0)} {name}, and the jobs {number}"
        for name, number in expected.items()
        if seen.usage.get(name, 0) != number
    ]


def _usage_of(end: JobEnd) -> Iterator[tuple[str, int]]:
    yield f"jobs {end.state}", 1
    yield "prompt_tokens", (end.prompt_tokens or 0) if end.has_run else 0
    yield "completion_tokens", end.completion_tokens
