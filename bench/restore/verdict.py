"""The verdict on a restore: what was there at the moment, and runs no second time. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.soak.journal import Promise
from bench.soak.sightings import Sightings


@dataclass
class Life:
    """What callers were promised around the moment, and what they saw before the restore.

    Attributes:
        moment: by the clock of the database.
        earlier: accepted before it.
        later: accepted after it.
        ended: ids of earlier jobs that were seen to have ended before it.
        seen: all ends, also those after the moment.
    """

    moment: str = ""
    earlier: list[Promise] = field(default_factory=list)
    later: list[Promise] = field(default_factory=list)
    ended: frozenset[str] = frozenset()
    seen: Sightings = field(default_factory=Sightings)


def judge(life: Life, seen: Sightings, again: Sequence[Promise]) -> list[str]:
    """Compare what is seen after the restore with what was seen before it.

    Args:
        life: before the restore.
        seen: after it, once all has ended.
        again: later jobs, as accepted when their callers sent them again.
    """
    faults = list(seen.faults)
    outputs = {each.prompt: life.seen.outputs.get(each.id) for each in (*life.earlier, *life.later)}
    old = {each.id for each in life.later}
    faults += [f"{each.name} was sent again, and is the lost {each.id}" for each in again if each.id in old]
    for promise in (*life.earlier, *again):
        end, runs = seen.jobs.get(promise.id), seen.runs.get(promise.id, [])
        if end is None or end.state != "completed":
            faults.append(f"{promise.name} did not complete: {end.state if end else 'lost'}")
            continue
        if runs.count("completed") != 1:
            faults.append(f"{promise.name} has runs that ended as {runs}")
        if seen.outputs.get(promise.id) != outputs[promise.prompt]:
            faults.append(f"{promise.name} has another answer than before")
        if promise.id in life.ended and (end, runs) != (
            life.seen.jobs[promise.id],
            life.seen.runs[promise.id],
        ):
            faults.append(f"{promise.name} had ended before the moment, and changed")
    return faults
