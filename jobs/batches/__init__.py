"""Batches: the functions that change and read them; validation, expansion and results are modules."""

from jobs.batches.lifecycle import (
    BatchGlance,
    BatchSpec,
    cancel,
    create,
    end,
    find_repeated,
    get,
    glance,
    hold,
    list_batches,
    move,
    prune,
    retry,
    wait_for_others,
)

__all__ = [
    "BatchGlance",
    "BatchSpec",
    "cancel",
    "create",
    "end",
    "find_repeated",
    "get",
    "glance",
    "hold",
    "list_batches",
    "move",
    "prune",
    "retry",
    "wait_for_others",
]
