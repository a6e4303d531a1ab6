"""The local engine's trace as requests, the occupancy over time, and the gaps between requests."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.simulation.occupancy import Moment
from jobs.engines.capacity import Capacity


@dataclass(frozen=True, slots=True)
class Request:
    """One request on the engine; times are the machine's monotonic seconds.

    Attributes:
        request_id: the sender's id; the segments of a job share one.
        prompt_tokens: sent.
        limit: output tokens allowed.
        generated: output tokens when it ended.
        came: when it reached the engine.
        began: when its first iteration started.
        ended: when its slot was free and its final response left.
        reused_blocks: of its prompt, that the engine had.
    """

    request_id: str
    prompt_tokens: int
    limit: int
    generated: int
    came: float
    began: float
    ended: float
    reused_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """All requests that arrived within a span of time.

    Attributes:
        requests: finished ones, in order of arrival.
        num_open: unfinished ones.
        lost_s: how far the engine lagged the modelled GPU meanwhile.
    """

    requests: list[Request]
    num_open: int
    lost_s: float


def read(path: Path, *, since: float, until: float) -> Seen:
    """Read the trace between two monotonic moments."""
    opened: dict[str, list[Request]] = {}
    ended: list[Request] = []
    lost: list[float] = []
    for line in path.read_text().splitlines():
        at, event, request_id, prompt, limit, generated, so_far, reused = json.loads(line)
        if not since <= at <= until:
            continue
        if event == "came":
            request = Request(request_id, prompt, limit, 0, at, at, at)
            opened.setdefault(request_id, []).append(request)
            continue
        lost.append(so_far)
        if request_id not in opened or not opened[request_id]:
            continue
        if event == "began":
            place = next((i for i, each in enumerate(opened[request_id]) if each.began == each.came), 0)
            opened[request_id][place] = replace(opened[request_id][place], began=at, limit=limit)
        else:
            first = opened[request_id].pop(0)
            ended.append(replace(first, ended=at, generated=generated, reused_blocks=reused))
    num_open = sum(map(len, opened.values()))
    lost_s = lost[-1] - lost[0] if lost else 0.0
    return Seen(sorted(ended, key=lambda each: each.came), num_open, lost_s)


def occupancy(requests: Iterable[Request], capacity: Capacity, *, since: float) -> list[Moment]:
    """Compute the slots and blocks reserved on the engine, from 0 at `since`."""
    changes = []
    for each in requests:
        blocks = capacity.blocks_of(each.prompt_tokens + each.limit)
        changes += [
            (each.began, 1, blocks, each.prompt_tokens),
            (each.ended, -1, -blocks, -each.prompt_tokens),
        ]
    slots = reserved = tokens = 0
    moments = [Moment(0.0, 0, 0, 0)]
    for at, slot, blocks, prompt in sorted(changes):
        slots, reserved, tokens = slots + slot, reserved + blocks, tokens + prompt
        moments.append(Moment(at - since, slots, reserved, tokens))
    return moments


def most_asked(requests: Iterable[Request], capacity: Capacity) -> tuple[int, int]:
    """Return the most slots and the most blocks asked of the engine at once.

    They count whether free or not. A request that arrives just as another ends counts after it.
    """
    changes = []
    for each in requests:
        blocks = capacity.blocks_of(each.prompt_tokens + each.limit)
        changes += [(each.came, 1, blocks), (each.ended, -1, -blocks)]
    slots = reserved = most_slots = most_blocks = 0
    for _, slot, blocks in sorted(changes):
        slots, reserved = slots + slot, reserved + blocks
        most_slots, most_blocks = max(most_slots, slots), max(most_blocks, reserved)
    return most_slots, most_blocks


def refills(requests: Sequence[Request], *, slots: int) -> list[tuple[float, float]]:
    """Return seconds from each freed slot to its next request, and to its prefill.

    Only meaningful if slots are what binds: then the n-th end makes room for the request that arrives
    `slots` later. Ends without a successor are left out.
    """
    ends = sorted(each.ended for each in requests)
    in_order = sorted(requests, key=lambda each: each.came)
    return [
        (each.came - end, each.began - end)
        for end, each in zip(ends, in_order[slots:], strict=False)
        if each.came >= end
    ]
